"""Random steps: system calls with plain arguments, chosen to meet each other."""

from __future__ import annotations

import os
import random
import stat

from cowfs.types import BLOCK_SIZE
from cowfs.volume.sparse import KEEP_SIZE, PUNCH_HOLE, ZERO_RANGE
from tests.fuzz.side import SET_TIMES, Side, Step
from tests.mount.calls import EXCHANGE, NOREPLACE

_PAGE = 4096
_NAMES = ("a", "b", "c", "d", "e", "\udcff", "\n", "n" * 255)
_TARGETS = ("a", "b", "c/a", "a/b", "nowhere", ".", "d")
_EDGES = (0, 1, 5, _PAGE, BLOCK_SIZE, 2 * BLOCK_SIZE, 3 * BLOCK_SIZE)
_FAR = (1 << 32) - 3
_HANDLES = 6
_MAPS = 2
_MAX_PATHS = 40
_MAX_DEPTH = 4
_ACCESS = (os.O_RDONLY, os.O_WRONLY, os.O_RDWR, os.O_RDWR)
_FLAGS = (
    (os.O_CREAT, 0.6),
    (os.O_TRUNC, 0.15),
    (os.O_EXCL, 0.1),
    (os.O_APPEND, 0.15),
    (os.O_SYNC, 0.03),
    (os.O_DSYNC, 0.03),
    (os.O_NOFOLLOW, 0.1),
    (os.O_DIRECTORY, 0.05),
    (os.O_PATH, 0.03),
    (os.O_NOATIME, 0.03),
)
_MODES = (0o600, 0o644, 0o755, 0o700, 0o2755, 0o4711, 0o1777, 0o6777)
_OWN_MODES = (0o700, 0o711, 0o744, 0o755)
"""Without root: any others would close a directory to the run that compares it."""
_XATTRS = ("user.a", "user.b", "user." + "x" * 200, "trusted.a", "security.a", "none")


class Chooser:
    """Chooses steps, most of which should succeed. `see` tells it what there is.

    kind: "mount"; "watch", where a watcher sees everything now and then; or "apply", where the head
    is written into the base often, which makes the base another one. privileged: whether to change
    owners, and to take away one's own permissions.
    """

    def __init__(self, rng: random.Random, kind: str = "mount", *, privileged: bool) -> None:
        self.rng = rng
        self._paths: list[str] = []
        self._directories: list[str] = [""]
        self._files: list[str] = []
        self._handles: list[int] = []
        self._maps: list[int] = []
        self._privileged = privileged
        self._remounts = (
            ("clean", "kill", "apply", "apply") if kind == "apply" else ("clean", "kill")
        )
        often = {"mount": {"watch": 0.0}, "watch": {}, "apply": {"watch": 0.0, "remount": 4.0}}[
            kind
        ]
        self._weights = [
            weight * often.get(call.__name__.removeprefix("_"), 1.0) for call, weight in _CALLS
        ]

    def see(self, side: Side) -> None:
        """Look at a tree and at what is open on it."""
        kinds = side.kinds()
        self._paths = [path for path in kinds if path]
        self._directories = [path for path, kind in kinds.items() if kind == stat.S_IFDIR]
        self._files = [path for path, kind in kinds.items() if kind == stat.S_IFREG]
        self._handles = sorted(side.handles)
        self._maps = sorted(side.maps)

    def step(self) -> Step:
        """The next call."""
        make = self.rng.choices(_CALLS, self._weights)[0][0]
        step: Step = make(self)
        return step

    # -- arguments ------------------------------------------------------------------------------

    def _one_of(self, paths: list[str]) -> str:
        """One of these, the first few often: what is interesting needs several calls on the same
        thing. Sometimes any path."""
        rng = self.rng
        if not paths or rng.random() < 0.1:
            paths = self._paths or [""]
        if rng.random() < 0.3:
            paths = paths[:3]
        return rng.choice(paths)

    def _path(self) -> str:
        """A path that was there a moment ago, seldom the top."""
        return "" if self.rng.random() < 0.04 else self._one_of(self._paths)

    def _file(self) -> str:
        return self._one_of(self._files)

    def _directory(self) -> str:
        return self._one_of(self._directories)

    def _name(self) -> str:
        """A path, but not the top, which is nobody's to rename or remove."""
        return self._one_of(self._paths) or self.rng.choice(_NAMES)

    def _new(self) -> str:
        """A path to make something at, mostly free."""
        rng = self.rng
        above = rng.choice(self._directories)
        if above.count("/") >= _MAX_DEPTH - 1 or rng.random() < 0.2:
            above = ""
        if rng.random() < 0.05:
            above = self._one_of(self._paths)
        if len(self._paths) > _MAX_PATHS:
            return self._name()
        path = ""
        for _ in range(3):
            name = rng.choice(_NAMES)
            path = f"{above}/{name}" if above else name
            if path not in self._paths:
                break
        return path

    def _any(self) -> str:
        return self._name() if self.rng.random() < 0.5 else self._new()

    def _offset(self) -> int:
        rng = self.rng
        if rng.random() < 0.01:
            return _FAR + rng.randrange(7)
        if rng.random() < 0.4:
            return rng.randrange(4 * BLOCK_SIZE)
        return max(rng.choice(_EDGES) + rng.randrange(-2, 3), 0)

    def _size(self) -> int:
        rng = self.rng
        if rng.random() < 0.5:
            return rng.randrange(300)
        if rng.random() < 0.3:
            return rng.randrange(3 * BLOCK_SIZE)
        edge: int = rng.choice(_EDGES)
        return max(edge + rng.randrange(-2, 3), 0)

    def _seed(self) -> int:
        return self.rng.randrange(9)

    def _slot(self) -> int:
        """A number for a new handle."""
        return self.rng.randrange(_HANDLES)

    def _handle(self) -> int:
        """The number of an open one, if there is one."""
        return self.rng.choice(self._handles or [0])

    def _mapping(self) -> int:
        return self.rng.choice(self._maps or [0])

    def _mode(self) -> int:
        return self.rng.choice(_MODES if self._privileged else _OWN_MODES)

    def _time(self) -> int:
        """Before the clock's, also before 1970."""
        return self.rng.choice((0, 1, -1, -(10**18) + 7, self.rng.randrange(SET_TIMES)))

    def _flags(self) -> int:
        # O_NONBLOCK: a fifo's other end is nobody's.
        flags = self.rng.choice(_ACCESS) | os.O_NONBLOCK
        for flag, chance in _FLAGS:
            if self.rng.random() < chance:
                flags |= flag
        if flags & os.O_CREAT and flags & os.O_DIRECTORY:
            flags &= ~os.O_DIRECTORY  # EINVAL since Linux 6.3
        return flags

    def _follow(self) -> bool:
        return self.rng.random() < 0.5

    # -- calls ----------------------------------------------------------------------------------

    def _open(self) -> Step:
        path = self._any() if self.rng.random() < 0.5 else self._file()
        return ("open", self._slot(), path, self._flags(), self._mode())

    def _open_simply(self) -> Step:
        return ("open", self._slot(), self._file(), os.O_RDWR | os.O_NONBLOCK, 0)

    def _open_directory(self) -> Step:
        flags = os.O_RDONLY | os.O_DIRECTORY
        return ("open", self._slot(), self._directory(), flags, 0)

    def _openat(self) -> Step:
        name, mode = self.rng.choice(_NAMES), self._mode()
        return ("openat", self._slot(), self._handle(), name, self._flags(), mode)

    def _dup(self) -> Step:
        return ("dup", self._slot(), self._handle())

    def _close(self) -> Step:
        return ("close", self._handle())

    def _pread(self) -> Step:
        return ("pread", self._handle(), self._offset(), self._size())

    def _read(self) -> Step:
        return ("read", self._handle(), self._size())

    def _lseek(self) -> Step:
        whence = self.rng.choice((os.SEEK_SET, os.SEEK_CUR, os.SEEK_END))
        return ("lseek", self._handle(), self.rng.choice((0, -1, 7, self._offset())), whence)

    def _pwrite(self) -> Step:
        return ("pwrite", self._handle(), self._offset(), self._size(), self._seed())

    def _write(self) -> Step:
        return ("write", self._handle(), self._size(), self._seed())

    def _ftruncate(self) -> Step:
        return ("ftruncate", self._handle(), self._offset())

    def _fallocate(self) -> Step:
        mode = self.rng.choice((0, KEEP_SIZE, PUNCH_HOLE | KEEP_SIZE, ZERO_RANGE, 17, PUNCH_HOLE))
        return ("fallocate", self._handle(), mode, self._offset(), self._size())

    def _tmpfile(self) -> Step:
        flags = self.rng.choice((os.O_RDWR, os.O_WRONLY, os.O_RDWR | os.O_EXCL))
        return ("tmpfile", self._slot(), self._directory(), flags, self._mode())

    def _name_it(self) -> Step:
        return ("name", self._handle(), self._new())

    def _sync(self) -> Step:
        return (self.rng.choice(("fsync", "fdatasync")), self._handle())

    def _fstat(self) -> Step:
        return ("fstat", self._handle())

    def _fchmod(self) -> Step:
        return ("fchmod", self._handle(), self._mode())

    def _owners(self) -> tuple[int, int]:
        if not self._privileged:
            return -1, -1
        return self.rng.choice(((0, 0), (1, 2), (-1, 3), (1000, -1), (-1, -1)))

    def _fchown(self) -> Step:
        return ("fchown", self._handle(), *self._owners())

    def _futimens(self) -> Step:
        return ("futimens", self._handle(), self._time(), self._time())

    def _fsetxattr(self) -> Step:
        return ("fsetxattr", self._handle(), self.rng.choice(_XATTRS), self.rng.randbytes(3))

    def _flist(self) -> Step:
        return ("flist", self._handle())

    def _unlinkat(self) -> Step:
        return ("unlinkat", self._handle(), self.rng.choice(_NAMES))

    def _copy_range(self) -> Step:
        size, start, to = self._size(), self._offset(), self._offset()
        return ("copy_range", self._handle(), self._handle(), size, start, to)

    def _direct(self) -> Step:
        page = self.rng.choice((0, 1, 15, 16, 17, 31, 32))
        return ("direct", self._file(), page * _PAGE, self._seed())

    def _map(self) -> Step:
        return ("map", self.rng.randrange(_MAPS), self._handle())

    def _unmap(self) -> Step:
        return ("unmap", self._mapping())

    def _map_read(self) -> Step:
        return ("map_read", self._mapping(), self._offset(), self._size())

    def _map_write(self) -> Step:
        number, sync = self._mapping(), self._follow()
        return ("map_write", number, self._offset(), self._size(), self._seed(), sync)

    def _truncate(self) -> Step:
        return ("truncate", self._file(), self._offset())

    def _rename(self) -> Step:
        flags = self.rng.choice((0, 0, 0, 0, NOREPLACE, EXCHANGE, EXCHANGE | NOREPLACE, 8))
        return ("rename", self._name(), self._any(), flags)

    def _link(self) -> Step:
        return ("link", self._one_of(self._files) or "a", self._new())

    def _unlink(self) -> Step:
        return ("unlink", self._file() or "a" if self.rng.random() < 0.5 else self._name())

    def _rmdir(self) -> Step:
        return ("rmdir", self._directory() or "a")

    def _mkdir(self) -> Step:
        return ("mkdir", self._new(), self._mode())

    def _mknod(self) -> Step:
        kind = self.rng.choice((stat.S_IFIFO, stat.S_IFSOCK, stat.S_IFREG))
        return ("mknod", self._new(), kind | self._mode())

    def _symlink(self) -> Step:
        return ("symlink", self.rng.choice(_TARGETS), self._new())

    def _readlink(self) -> Step:
        return ("readlink", self._path())

    def _chmod(self) -> Step:
        return ("chmod", self._path(), self._mode())

    def _chown(self) -> Step:
        return ("chown", self._path(), *self._owners(), self._follow())

    def _utimensat(self) -> Step:
        return ("utimensat", self._path(), self._time(), self._time(), self._follow())

    def _touch(self) -> Step:
        return ("touch", self._path())

    def _setxattr(self) -> Step:
        flags = self.rng.choice((0, 0, os.XATTR_CREATE, os.XATTR_REPLACE))
        value = self.rng.randbytes(self.rng.choice((0, 1, 100)))
        return ("setxattr", self._path(), self.rng.choice(_XATTRS), value, flags)

    def _removexattr(self) -> Step:
        return ("removexattr", self._path(), self.rng.choice(_XATTRS))

    def _getxattr(self) -> Step:
        return ("getxattr", self._path(), self.rng.choice(_XATTRS))

    def _listxattr(self) -> Step:
        return ("listxattr", self._path())

    def _list(self) -> Step:
        return ("list", self._directory())

    def _stat(self) -> Step:
        return ("stat", self._any(), self._follow())

    def _access(self) -> Step:
        return ("access", self._path(), self.rng.randrange(8))

    def _save(self) -> Step:
        return ("save", self._any(), self._size(), self._seed())

    def _syncfs(self) -> Step:
        return ("syncfs",)

    # -- what only a mount has ------------------------------------------------------------------

    def _compare(self) -> Step:
        return ("compare",)

    def _checkpoint(self) -> Step:
        return ("checkpoint", self._follow())

    def _restore(self) -> Step:
        return ("restore", self.rng.choice((0, 0, 1, 2, self.rng.randrange(50))))

    def _undo(self) -> Step:
        return (self.rng.choice(("undo", "undo", "redo")),)

    def _remount(self) -> Step:
        return ("remount", self.rng.choice(self._remounts))

    def _watch(self) -> Step:
        return ("watch", self._follow())

    def _drop_caches(self) -> Step:
        return ("drop_caches",)


_CALLS = (
    (Chooser._open, 60),
    (Chooser._open_simply, 30),
    (Chooser._open_directory, 8),
    (Chooser._openat, 10),
    (Chooser._dup, 4),
    (Chooser._close, 10),
    (Chooser._pread, 25),
    (Chooser._read, 10),
    (Chooser._lseek, 8),
    (Chooser._pwrite, 50),
    (Chooser._write, 30),
    (Chooser._ftruncate, 25),
    (Chooser._fallocate, 25),
    (Chooser._tmpfile, 6),
    (Chooser._name_it, 8),
    (Chooser._sync, 6),
    (Chooser._fstat, 10),
    (Chooser._fchmod, 8),
    (Chooser._fchown, 5),
    (Chooser._futimens, 8),
    (Chooser._fsetxattr, 5),
    (Chooser._flist, 8),
    (Chooser._unlinkat, 5),
    (Chooser._copy_range, 5),
    (Chooser._direct, 5),
    (Chooser._map, 15),
    (Chooser._unmap, 3),
    (Chooser._map_read, 15),
    (Chooser._map_write, 25),
    (Chooser._truncate, 20),
    (Chooser._rename, 50),
    (Chooser._link, 25),
    (Chooser._unlink, 40),
    (Chooser._rmdir, 15),
    (Chooser._mkdir, 25),
    (Chooser._mknod, 8),
    (Chooser._symlink, 15),
    (Chooser._readlink, 5),
    (Chooser._chmod, 12),
    (Chooser._chown, 8),
    (Chooser._utimensat, 15),
    (Chooser._touch, 4),
    (Chooser._setxattr, 15),
    (Chooser._removexattr, 8),
    (Chooser._getxattr, 5),
    (Chooser._listxattr, 5),
    (Chooser._list, 12),
    (Chooser._stat, 25),
    (Chooser._access, 5),
    (Chooser._save, 15),
    (Chooser._syncfs, 3),
    (Chooser._compare, 25),
    (Chooser._checkpoint, 15),
    (Chooser._restore, 12),
    (Chooser._undo, 8),
    (Chooser._remount, 3),
    (Chooser._watch, 6),
    (Chooser._drop_caches, 1),
)
