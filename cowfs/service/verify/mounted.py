"""What is mounted equals what is stored: a walk over the mount with plain system calls.

The mount goes on while we look. A difference is looked at once more after everything was committed
again; what changed meanwhile is counted as busy, not reported.

Threading: everything runs in the calling thread; the daemon is another process.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from cowfs.errors import DamagedRecordError
from cowfs.format import codec, records
from cowfs.service.verify.report import HEAD, Progress, Report
from cowfs.service.workspace import ReadOnly
from cowfs.store.lineage import Lineage
from cowfs.store.snapshot import Snapshot, read_block
from cowfs.types import BLOCK_SIZE
from cowfs.volume.base import Base
from cowfs.volume.importing import recorded_fingerprint

Refresh = Callable[[], ReadOnly]
"""Has the daemon commit everything (method `flush`), and opens a new reader on the same store."""

_PHASE = "mount"
_DIRECTORY = stat.S_IFDIR >> 12
_EVERY = 256
_ZEROS = bytes(BLOCK_SIZE)
_MISSING = (errno.ENOENT, errno.ENOTDIR, errno.ESTALE)


@dataclass(frozen=True, slots=True)
class _Difference:
    """One finding: the check, the path, what is different, and what the mount showed just after it
    was found, with the times that any change sets: two that are equal have nothing between them.
    """

    check: str
    path: bytes
    detail: str
    shown: object


class _Stored:
    """The head of a workspace, as its store has it."""

    def __init__(self, workspace: ReadOnly) -> None:
        self.reader = workspace.reader
        self.base: Base | None = workspace.base
        lineage: Lineage = workspace.reader.lineage(workspace.branch.head)
        self.snapshot = Snapshot(workspace.reader, lineage)

    def find(self, path: bytes) -> int | None:
        """Inode number of a path, None when it does not exist."""
        ino = 1
        for name in path.split(b"/") if path else ():
            found = self.snapshot.lookup(ino, name)
            if found is None:
                return None
            ino = found[0]
        return ino

    def entries(self, ino: int) -> tuple[list[tuple[bytes, int, int]], set[bytes]]:
        """(name, ino, kind) of a directory, and the names that are damaged; those are reported by
        the checks of the store."""
        damaged: set[bytes] = set()
        found = list(self.snapshot.entries(ino, lambda name, _: damaged.add(name)))
        return found, damaged

    def origin(self, thing: int) -> records.OriginRecord | None:
        value = self.reader.get("origin", thing.to_bytes(8, "big"))
        return records.unpack_origin(value) if value is not None else None

    def unlisted(self, ino: int) -> bool:
        """Whether the entries of a directory are only in the base yet."""
        origin = self.origin(ino)
        return origin is not None and origin.state == records.ORIGIN_UNLISTED


class Comparison:
    """One comparison of a mount with its store."""

    def __init__(
        self, report: Report, mountpoint: str, progress: Progress, *, thorough: bool
    ) -> None:
        self._report = report
        self._progress = progress
        self._thorough = thorough
        self._root = os.open(mountpoint, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._seen = 0
        self._looking_again = False
        self._privileged = os.geteuid() == 0

    def close(self) -> None:
        os.close(self._root)

    def run(self, workspace: ReadOnly, refresh: Refresh | None) -> None:
        """Walk the mount, and report what differs."""
        stored = _Stored(workspace)
        unlisted: list[bytes] = []
        found = list(self._walk(stored, b"", unlisted))
        if refresh is not None:
            if found or unlisted:
                for path in unlisted:
                    self._list_all(path)
                stored = _Stored(refresh())
                found = [d for d in found if self._still(stored, d)]
            fresh = [d for path in unlisted for d in self._walk(stored, path, [], below_only=True)]
            if fresh:
                stored = _Stored(refresh())
                found += [d for d in fresh if self._still(stored, d)]
        for difference in found:
            if self._report.room(difference.check):
                self._report.add(
                    difference.check,
                    "mount",
                    os.fsdecode(difference.path) or ".",
                    difference.detail,
                    checkpoints=[HEAD],
                    paths=[difference.path or b"."],
                )

    def _count(self, what: str, number: int = 1) -> None:
        if not self._looking_again:
            self._report.checked[what] += number

    # -- walking ------------------------------------------------------------------------------

    def _walk(
        self, stored: _Stored, top: bytes, unlisted: list[bytes], *, below_only: bool = False
    ) -> Iterator[_Difference]:
        """Differences at and below a directory; those not listed yet go to `unlisted`."""
        waiting = [top]
        while waiting:
            path = waiting.pop()
            try:
                ino = stored.find(path)
                if ino is None:
                    continue
                if path == top and not below_only:
                    yield from self._compare(stored, path, ino)
                if stored.unlisted(ino):
                    unlisted.append(path)
                    continue
                yield from self._entries(stored, path, ino)
                children, _ = stored.entries(ino)
            except DamagedRecordError:
                continue  # reported by the checks of the store
            for name, child, kind in children:
                below = path + b"/" + name if path else name
                try:
                    yield from self._compare(stored, below, child)
                except DamagedRecordError:
                    continue
                if kind == _DIRECTORY:
                    waiting.append(below)

    def _list_all(self, top: bytes) -> None:
        """Look into every directory below one through the mount, so that it gets imported."""
        waiting = [top]
        while waiting:
            path = waiting.pop()
            try:
                for name, is_dir in self._listing(path):
                    if is_dir:
                        waiting.append(path + b"/" + name if path else name)
            except OSError:
                continue

    def _listing(self, path: bytes) -> list[tuple[bytes, bool]]:
        fd = os.open(path or b".", os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=self._root)
        try:
            with os.scandir(fd) as entries:
                return sorted(
                    (os.fsencode(e.name), e.is_dir(follow_symlinks=False)) for e in entries
                )
        finally:
            os.close(fd)

    def _lstat(self, path: bytes) -> os.stat_result:
        return os.stat(path or b".", dir_fd=self._root, follow_symlinks=False)

    def _shown(self, check: str, path: bytes) -> object:
        """What a check compares, as the mount shows it now; the errno of a failure."""
        try:
            st = self._lstat(path)
            what: object = None
            if check == "mount-entries":
                what = self._listing(path)
            elif check == "mount-xattr":
                what = self._read_xattrs(path)
            elif check == "mount-target":
                what = os.readlink(path, dir_fd=self._root)
            return tuple(st)[:7], st.st_mtime_ns, st.st_ctime_ns, what
        except OSError as error:
            return error.errno

    def _still(self, stored: _Stored, old: _Difference) -> bool:
        """Whether a difference is there again, and not because the mount changed meanwhile."""
        if self._shown(old.check, old.path) != old.shown:
            self._count("mount busy")
            return False
        self._looking_again = True  # what is compared once more is counted once
        try:
            ino = stored.find(old.path)
            if ino is None:
                return old.shown not in _MISSING
            again = [*self._compare(stored, old.path, ino), *self._entries(stored, old.path, ino)]
        except DamagedRecordError:
            return True
        finally:
            self._looking_again = False
        same = [new.shown == old.shown for new in again if new.check == old.check]
        if same and not any(same):
            self._count("mount busy")
        return any(same)

    # -- comparing ----------------------------------------------------------------------------

    def _difference(self, check: str, path: bytes, detail: str) -> _Difference:
        return _Difference(check, path, detail, self._shown(check, path))

    def _entries(self, stored: _Stored, path: bytes, ino: int) -> Iterator[_Difference]:
        """The names in a directory."""
        record = stored.snapshot.inode(ino)
        if record is None or not stat.S_ISDIR(record.mode) or stored.unlisted(ino):
            return
        entries, damaged = stored.entries(ino)
        known = {name: kind == _DIRECTORY for name, _, kind in entries}
        try:
            shown = dict(self._listing(path))
        except PermissionError:
            self._count("mount unreadable")
            return
        except OSError as error:
            yield self._difference("mount-entries", path, f"cannot be listed: {error.strerror}")
            return
        self._count("mount directories")
        for name in sorted((known.keys() ^ shown.keys()) - damaged):
            where = "stored, but not mounted" if name in known else "mounted, but not stored"
            detail = f"{os.fsdecode(name)!r} is {where}"
            yield self._difference("mount-entries", path, detail)

    def _compare(self, stored: _Stored, path: bytes, ino: int) -> Iterator[_Difference]:
        """Attributes, target, extended attributes and content of one path."""
        self._seen += 1
        if not self._seen % _EVERY:
            self._progress(_PHASE, self._seen, 0)
        record = stored.snapshot.inode(ino)
        if record is None:
            return  # the store's own check tells
        try:
            st = self._lstat(path)
        except PermissionError:
            self._count("mount unreadable")
            return
        except OSError as error:
            detail = f"cannot be looked at: {error.strerror}"
            yield self._difference("mount-attributes", path, detail)
            return
        self._count("mount inodes")
        if differing := _attributes(record, ino, st):
            yield self._difference("mount-attributes", path, "; ".join(differing))
        if stat.S_ISLNK(record.mode) and stat.S_ISLNK(st.st_mode):
            target = os.readlink(path, dir_fd=self._root)
            if target != record.target:
                detail = f"target {record.target!r} stored, {target!r} mounted"
                yield self._difference("mount-target", path, detail)
        yield from self._xattrs(stored, path, ino)
        if stat.S_ISREG(record.mode) and stat.S_ISREG(st.st_mode):
            yield from self._content(stored, path, record)

    def _xattrs(self, stored: _Stored, path: bytes, ino: int) -> Iterator[_Difference]:
        known = self._visible(stored.snapshot.xattrs(ino))
        try:
            shown = self._read_xattrs(path)
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EPERM, errno.ENOTSUP):
                detail = f"extended attributes cannot be read: {error.strerror}"
                yield self._difference("mount-xattr", path, detail)
            return
        for name in sorted(known.keys() | shown.keys()):
            if known.get(name) != shown.get(name):
                detail = f"extended attribute {os.fsdecode(name)!r} differs"
                yield self._difference("mount-xattr", path, detail)

    def _visible(self, attributes: dict[bytes, bytes]) -> dict[bytes, bytes]:
        """Those that a process like this one is shown by the kernel."""
        hidden = (b"system.",) if self._privileged else (b"system.", b"trusted.")
        return {name: value for name, value in attributes.items() if not name.startswith(hidden)}

    def _read_xattrs(self, path: bytes) -> dict[bytes, bytes]:
        place = b"/proc/self/fd/%d/%s" % (self._root, path or b".")
        names = os.listxattr(place, follow_symlinks=False)
        found = {
            os.fsencode(name): os.getxattr(place, name, follow_symlinks=False) for name in names
        }
        return self._visible(found)

    # -- content ------------------------------------------------------------------------------

    def _content(
        self, stored: _Stored, path: bytes, record: records.InodeRecord
    ) -> Iterator[_Difference]:
        """The bytes of a file, as far as the store has them; all of it when thorough."""
        if not record.size:
            return
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=self._root)
        except PermissionError:
            self._count("mount unreadable")
            return
        except OSError as error:
            yield self._difference("mount-content", path, f"cannot be opened: {error.strerror}")
            return
        try:
            for number in self._blocks(stored, record):
                fault = self._block_fault(stored, fd, record, number)
                if fault:
                    detail = f"bytes from {number * BLOCK_SIZE} on {fault}"
                    yield self._difference("mount-content", path, detail)
                    return
        finally:
            os.close(fd)

    def _blocks(self, stored: _Stored, record: records.InodeRecord) -> Iterator[int]:
        """The blocks to compare: those that have an extent, or all of them."""
        if self._thorough or not record.base_size:
            yield from range((record.size + BLOCK_SIZE - 1) // BLOCK_SIZE)
            return
        for number, _ in stored.snapshot.extents(record.content):
            if number * BLOCK_SIZE < record.size:
                yield number

    def _block_fault(
        self, stored: _Stored, fd: int, record: records.InodeRecord, number: int
    ) -> str:
        """What is wrong with one block as it is read through the mount, "" when nothing is."""
        length = min(BLOCK_SIZE, record.size - number * BLOCK_SIZE)
        digest, limit = stored.snapshot.block_source(record.content, number, record.base_size)
        if digest is None and not self._thorough:
            return ""
        try:
            shown = os.pread(fd, length, number * BLOCK_SIZE)
        except OSError as error:
            if error.errno == errno.EIO and _is_damaged(stored, record, digest):
                return ""  # as it should be; the checks of the store tell of it
            return f"cannot be read: {error.strerror}"
        self._count("mount blocks")
        try:
            if digest is None:
                return self._base_fault(stored, record, number, limit, shown)
            if digest and limit >= BLOCK_SIZE:
                value = stored.reader.get("block", digest) or b""
                size = int.from_bytes(value[1 : codec.HEADER_SIZE], "big")
                same = codec.block_hash(shown[:size]) == digest and not any(shown[size:])
            else:
                data = read_block(stored.reader, digest)[:limit] if digest else b""
                same = shown == (data + _ZEROS[: length - len(data)])[:length]
        except DamagedRecordError as error:
            return f"are not readable in the store: {error}"
        return "" if same and len(shown) == length else "differ"

    def _base_fault(
        self,
        stored: _Stored,
        record: records.InodeRecord,
        number: int,
        limit: int,
        shown: bytes,
    ) -> str:
        """Compare with the base file, when it still is the one that was imported."""
        origin = stored.origin(record.content)
        if stored.base is None or origin is None:
            return ""
        value = stored.reader.get("base", origin.parent.to_bytes(8, "big") + origin.name)
        path = _base_path(stored, origin)
        if value is None or path is None:
            return ""
        entry = records.unpack_base(value)
        fd = stored.base.cached_file(record.content, path, recorded_fingerprint(entry))
        if fd is None:
            return ""
        data = os.pread(fd, min(limit, BLOCK_SIZE), number * BLOCK_SIZE)
        return "" if shown == data + _ZEROS[: len(shown) - len(data)] else "differ from the base"


def _is_damaged(stored: _Stored, record: records.InodeRecord, digest: bytes | None) -> bool:
    """Whether nobody has a block of a file any more."""
    if digest is None:
        origin = stored.origin(record.content)
        return origin is not None and origin.state == records.ORIGIN_LOST
    try:
        read_block(stored.reader, digest)
    except DamagedRecordError:
        return True
    return False


def _base_path(stored: _Stored, origin: records.OriginRecord) -> bytes | None:
    parts = []
    while origin.parent:
        parts.append(origin.name)
        above = stored.origin(origin.parent)
        if above is None:
            return None
        origin = above
    return b"/".join(reversed(parts))


def _attributes(record: records.InodeRecord, ino: int, st: os.stat_result) -> list[str]:
    """Attributes that differ, in words. The size of a directory means nothing."""
    pairs = [
        ("inode number", ino, st.st_ino),
        ("mode", oct(record.mode), oct(st.st_mode)),
        ("nlink", record.nlink, st.st_nlink),
        ("uid", record.uid, st.st_uid),
        ("gid", record.gid, st.st_gid),
        ("mtime", record.mtime, st.st_mtime_ns),
    ]
    if not stat.S_ISDIR(record.mode):
        pairs.append(("size", record.size, st.st_size))
    if stat.S_ISCHR(record.mode) or stat.S_ISBLK(record.mode):
        pairs.append(("device", record.rdev, st.st_rdev))
    return [
        f"{name} {known} stored, {shown} mounted" for name, known, shown in pairs if known != shown
    ]
