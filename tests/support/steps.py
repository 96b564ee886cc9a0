"""Random work on a volume, the same for the same seed. For crash tests and long runs."""

from __future__ import annotations

import errno
import random
import stat
import sys
from pathlib import Path

from cowfs.types import BLOCK_SIZE
from cowfs.volume import attributes
from cowfs.volume.posix import PosixError
from tests.support.volumes import Rig, usable

_SIZES = (0, 1, 100, BLOCK_SIZE - 1, BLOCK_SIZE, BLOCK_SIZE + 1, 2 * BLOCK_SIZE)


class Worker:
    """Does one random thing after the other. A call that fails with an errno changes nothing."""

    def __init__(self, rig: Rig, seed: int) -> None:
        self._rig = rig
        self._rng = random.Random(seed)
        self._checkpoints: list[str] = []

    def step(self) -> None:
        """One call on a random path, now and then a checkpoint or a restore."""
        try:
            self._rng.choice(self._CALLS)(self)
        except PosixError:
            pass

    def _path(self) -> bytes:
        """A path that exists. Raises PosixError(ENOENT) when there is none."""
        paths = [path for path in self._rig.paths() if path]
        if not paths:
            raise PosixError(errno.ENOENT)
        return self._rng.choice(sorted(paths))

    def _new(self) -> bytes:
        rng, rig = self._rng, self._rig
        directories = sorted(path for path in rig.paths() if rig.at(path).is_dir)
        above = rng.choice(directories)
        name = b"%c%d" % (rng.choice(b"abc"), rng.randrange(4))
        return above + b"/" + name if above else name

    def _create(self) -> None:
        self._rig.create(self._new(), self._rng.randbytes(self._rng.choice(_SIZES)))

    def _mkdir(self) -> None:
        self._rig.mkdir(self._new())

    def _symlink(self) -> None:
        self._rig.symlink(b"target", self._new())

    def _link(self) -> None:
        self._rig.link(self._path(), self._new())

    def _unlink(self) -> None:
        self._rig.unlink(self._path())

    def _rmdir(self) -> None:
        self._rig.rmdir(self._path())

    def _rename(self) -> None:
        target = self._new() if self._rng.random() < 0.6 else self._path()
        self._rig.rename(self._path(), target, self._rng.choice((0, 0, 1, 2)))

    def _file(self) -> bytes:
        """A path of a file, b"none" when there is none."""
        files = sorted(path for path in self._rig.paths() if self._rig.at(path).is_file)
        return self._rng.choice(files) if files else b"none"

    def _write(self) -> None:
        path, rng = self._file(), self._rng
        if path != b"none":
            content = rng.randbytes(rng.choice(_SIZES) // 2 + 1)
            self._rig.write(path, content, rng.choice(_SIZES))

    def _truncate(self) -> None:
        path = self._file()
        if path != b"none":
            self._rig.truncate(path, self._rng.choice(_SIZES))

    def _attributes(self) -> None:
        path = self._path()
        if path != b"none":
            inode = self._rig.at(path)
            mode = stat.S_IFMT(inode.mode) | self._rng.choice((0o600, 0o644, 0o755))
            if inode.is_dir:
                mode = usable(mode)
            attributes.set_attributes(
                self._rig.view, inode, mode=mode, mtime=self._rng.randrange(9)
            )
            attributes.set_xattr(self._rig.view, inode, b"user.a", self._rng.randbytes(3))

    def _checkpoint(self) -> None:
        self._checkpoints.append(self._rig.checkpoint().id)

    def _restore(self) -> None:
        if self._checkpoints:
            self._rig.restore(self._rng.choice(self._checkpoints))

    def _undo(self) -> None:
        if self._rig.volume.branch.undo:
            self._rig.undo()

    _CALLS = (
        *(_create,) * 4,
        *(_mkdir,) * 2,
        _symlink,
        *(_link,) * 2,
        *(_unlink,) * 3,
        _rmdir,
        *(_rename,) * 4,
        *(_write,) * 4,
        *(_truncate,) * 2,
        *(_attributes,) * 2,
        _checkpoint,
        _restore,
        _undo,
    )


def main() -> None:
    """STORE BASE SEED: work for ever; a line on stdout for each step, and one for each sync."""
    store, base, seed = sys.argv[1:]
    rig = Rig(Path(store), Path(base))
    worker, rng = Worker(rig, int(seed)), random.Random(int(seed))
    for number in range(1_000_000):
        worker.step()
        if rng.random() < 0.5:
            rig.volume.quiesce()
        if rng.random() < 0.1:
            rig.volume.sync()
            print("synced", number, flush=True)
        print("did", number, flush=True)


if __name__ == "__main__":
    main()
