"""Random work on the content of one file, compared with an image of it in memory (like fsx).

Offsets lie in two windows: at the start of the file, and around 4 GiB; everything between is a
hole. With `fixed` the exerciser keeps to a part of a file that others use, too, and does not change
its size.
"""

from __future__ import annotations

import errno
import mmap
import os
import random
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from cowfs.types import BLOCK_SIZE
from cowfs.volume.sparse import KEEP_SIZE, PUNCH_HOLE, ZERO_RANGE
from tests.mount.calls import fallocate

WINDOW = 5 * BLOCK_SIZE + 4096
_FAR = (1 << 32) - 2 * BLOCK_SIZE
_REQUEST = 2 * BLOCK_SIZE
"""The most that the kernel sends in one request."""
_PAGE = mmap.PAGESIZE
_PIECE = 1 << 20
_LOGGED = 60


class WrongBytesError(AssertionError):
    """The file is not what was written to it."""


class Fixed(NamedTuple):
    """The part of a shared file that an exerciser keeps to, in bytes."""

    start: int
    end: int


class Image(NamedTuple):
    """What a file should be. near, far: the bytes of both windows, zeros after the end."""

    size: int
    near: bytes
    far: bytes


class Exerciser:
    """One file and its image. Decided by `seed`.

    path: a file that exists. marks: what it was at each checkpoint.
    """

    def __init__(self, path: Path, seed: int, fixed: Fixed | None = None) -> None:
        self._path = path
        self._rng = random.Random(seed)
        self._fixed = fixed
        self._fd = os.open(path, os.O_RDWR)
        self._mapping: tuple[mmap.mmap, int] | None = None
        self._size = os.fstat(self._fd).st_size
        length = fixed.end if fixed else WINDOW
        self._near = bytearray(os.pread(self._fd, length, 0).ljust(length, b"\0"))
        self._far = bytearray(WINDOW)
        self.marks: list[Image] = []
        self._log: deque[str] = deque(maxlen=_LOGGED)
        self.steps = 0

    # -- the image ------------------------------------------------------------------------------

    def _window(self, offset: int) -> tuple[bytearray, int]:
        return (self._far, _FAR) if offset >= _FAR else (self._near, 0)

    def _put(self, offset: int, content: bytes) -> None:
        window, start = self._window(offset)
        window[offset - start : offset - start + len(content)] = content
        self._size = max(self._size, offset + len(content))

    def _right(self, offset: int, size: int) -> bytes:
        """What is to be read; within one window."""
        window, start = self._window(offset)
        return bytes(window[offset - start : min(offset + size, self._size) - start])

    def _cut(self, size: int) -> None:
        for window, start in ((self._near, 0), (self._far, _FAR)):
            end = min(max(size - start, 0), len(window))
            window[end:] = bytes(len(window) - end)
        self._size = size

    # -- steps ----------------------------------------------------------------------------------

    def step(self) -> None:
        """One random operation. Raises WrongBytesError with the operations before."""
        calls = _FIXED_CALLS if self._fixed else _CALLS
        name = self._rng.choice(calls)
        self.steps += 1
        try:
            getattr(self, "_" + name)()
        except WrongBytesError:
            raise
        except OSError as error:
            raise WrongBytesError(f"{name}: {error}\n{self.log()}") from error

    def log(self) -> str:
        """The last operations."""
        return f"{self._path.name}:\n  " + "\n  ".join(self._log)

    def _note(self, text: str) -> None:
        self._log.append(f"{self.steps}: {text}")

    def _offset(self) -> int:
        rng = self._rng
        if self._fixed:
            return rng.randrange(self._fixed.start, self._fixed.end)
        edge = rng.choice((0, _PAGE, BLOCK_SIZE, _REQUEST, 3 * BLOCK_SIZE, 2 * _REQUEST))
        near = max(edge + rng.randrange(-3, 4), 0)
        if rng.random() < 0.4:
            near = rng.randrange(WINDOW - _PAGE)
        return near + (_FAR if rng.random() < 0.12 else 0)

    def _length(self, offset: int) -> int:
        rng = self._rng
        edge = rng.choice((1, _PAGE, BLOCK_SIZE, _REQUEST)) + rng.randrange(-1, 3)
        length = rng.choice((rng.randrange(64), rng.randrange(_REQUEST + 9), edge))
        if self._fixed:
            return min(length, self._fixed.end - offset)
        return min(length, WINDOW - (offset - _FAR if offset >= _FAR else offset))

    def _bytes(self, size: int) -> bytes:
        chance = self._rng.random()
        if chance < 0.1:
            return bytes(size)
        if chance < 0.3:
            return (b"%d " % self.steps * size)[:size]
        return self._rng.randbytes(size)

    def _write(self) -> None:
        offset = self._offset()
        content = self._bytes(self._length(offset))
        self._note(f"pwrite {len(content)} at {offset}")
        os.pwrite(self._fd, content, offset)
        if content:
            self._put(offset, content)

    def _append(self) -> None:
        if self._size > WINDOW - _PAGE and not _FAR <= self._size < _FAR + WINDOW - _PAGE:
            return
        content = self._bytes(self._rng.randrange(_PAGE))
        self._note(f"append {len(content)} at {self._size}")
        with open(self._path, "ab", buffering=0) as file:
            file.write(content)
        self._put(self._size, content)

    def _read(self) -> None:
        offset = self._offset()
        length = self._length(offset)
        self._note(f"pread {length} at {offset}")
        self._same(os.pread(self._fd, length, offset), offset, length)

    def _same(self, found: bytes, offset: int, length: int) -> None:
        right = self._right(offset, length)
        if found == right:
            return
        pairs = zip(found, right, strict=False)
        at = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(found), len(right)))
        raise WrongBytesError(
            f"at {offset + at}: {found[at : at + 8].hex()} (of {len(found)} bytes), should be "
            f"{right[at : at + 8].hex()} (of {len(right)}); the file has {self._size}\n{self.log()}"
        )

    def _truncate(self) -> None:
        size = self._offset()
        self._note(f"truncate to {size}, from {self._size}")
        if self._rng.random() < 0.5:
            os.ftruncate(self._fd, size)
        else:
            os.truncate(self._path, size)
        self._cut(size)

    def _punch(self) -> None:
        """Truncate, then grow again."""
        before = self._size
        self._truncate()
        self._note(f"truncate to {before}, from {self._size}")
        os.ftruncate(self._fd, before)
        self._cut(before)

    def _allocate(self) -> None:
        """fallocate(2), in all modes that there are."""
        offset = self._offset()
        length = self._length(offset)
        mode = self._rng.choice((PUNCH_HOLE | KEEP_SIZE, ZERO_RANGE, ZERO_RANGE | KEEP_SIZE, 0, 1))
        if self._fixed:
            mode |= KEEP_SIZE
        if not length:
            return
        self._note(f"fallocate({mode}) of {length} at {offset}")
        fallocate(self._fd, mode, offset, length)
        if mode & (PUNCH_HOLE | ZERO_RANGE):
            inside = min(length, self._size - offset)
            if inside > 0:
                self._put(offset, bytes(inside))
        if not mode & KEEP_SIZE:
            self._size = max(self._size, offset + length)

    def _seek(self) -> None:
        """What lseek(2) says to be a hole has no data in it."""
        if self._fixed:
            return
        offset = self._offset()
        self._note(f"lseek from {offset}")
        if offset >= self._size:
            return
        hole = os.lseek(self._fd, offset, os.SEEK_HOLE)
        try:
            following = os.lseek(self._fd, hole, os.SEEK_DATA)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            following = self._size
        window, start = self._window(hole)
        if any(window[hole - start : following - start]):
            raise WrongBytesError(f"data in the hole {hole} to {following}\n{self.log()}")

    def _empty(self) -> None:
        self._note("open with O_TRUNC")
        os.close(os.open(self._path, os.O_WRONLY | os.O_TRUNC))
        self._cut(0)

    def _map(self) -> None:
        """Read or write a few pages by a shared mapping, which may stay."""
        offset = self._offset()
        length = min(self._length(offset), max(self._size - offset, 0))
        if not length or not self._size:
            return
        start = offset // _PAGE * _PAGE
        self._drop()
        mapping = mmap.mmap(self._fd, offset + length - start, offset=start)
        self._mapping = mapping, start
        place = slice(offset - start, offset - start + length)
        if self._rng.random() < 0.4:
            self._note(f"mapped read of {length} at {offset}")
            self._same(mapping[place], offset, length)
        else:
            content = self._bytes(length)
            self._note(f"mapped write of {length} at {offset}")
            mapping[place] = content
            self._put(offset, content)
        if self._rng.random() < 0.2:
            self._note("msync")
            mapping.flush()
        if self._rng.random() < 0.5:
            self._drop()

    def _drop(self) -> None:
        if self._mapping is not None:
            self._mapping[0].close()
            self._mapping = None

    def _sync(self) -> None:
        self._note("fsync")
        os.fsync(self._fd)

    def _forget(self) -> None:
        """Have the kernel drop the file's clean pages."""
        self._note("fsync, fadvise(DONTNEED)")
        os.fsync(self._fd)
        os.posix_fadvise(self._fd, 0, 0, os.POSIX_FADV_DONTNEED)

    def _reopen(self) -> None:
        self._note("close, open")
        self.close()
        self.open()

    def _look(self) -> None:
        self._note("fstat")
        sizes = os.fstat(self._fd).st_size, os.stat(self._path).st_size
        if sizes != (self._size, self._size):
            raise WrongBytesError(f"size {sizes}, should be {self._size}\n{self.log()}")

    # -- history --------------------------------------------------------------------------------

    def mark(self) -> None:
        """A checkpoint was made."""
        self._note(f"checkpoint {len(self.marks)}")
        self.marks.append(Image(self._size, bytes(self._near), bytes(self._far)))

    def back(self, number: int) -> None:
        """A checkpoint was restored: the file must be what it was, also for who has it open."""
        self._note(f"restore {number}")
        image = self.marks[number]
        self._size = image.size
        self._near[:], self._far[:] = image.near, image.far
        self.check()

    def check(self) -> None:
        """All of both windows, and a look into the hole between."""
        with open(self._path, "rb", buffering=0) as file:
            for fd in (file.fileno(), self._fd):
                if not self._fixed:
                    self._look()
                for start, end in self._parts():
                    self._same(_read(fd, start, end), start, end - start)
                if self._size > _FAR and not self._fixed:
                    place = self._rng.randrange(WINDOW, _FAR - BLOCK_SIZE)
                    if os.pread(fd, BLOCK_SIZE, place) != bytes(BLOCK_SIZE):
                        raise WrongBytesError(f"no hole at {place}\n{self.log()}")
        if self._mapping is not None:
            mapping, start = self._mapping
            # Its first page may begin in somebody else's part.
            first = max(start, self._fixed.start) if self._fixed else start
            end = min(start + len(mapping), self._size)
            if first < end:
                self._same(mapping[first - start : end - start], first, end - first)

    def _parts(self) -> Iterator[tuple[int, int]]:
        if self._fixed:
            yield self._fixed
            return
        yield 0, min(WINDOW, self._size)
        if self._size > _FAR:
            yield _FAR, min(_FAR + WINDOW, self._size)

    def close(self) -> None:
        """Let go of the file. `open` takes it up again, also on another mount."""
        self._drop()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def open(self) -> None:
        self._fd = os.open(self._path, os.O_RDWR)


def _read(fd: int, start: int, end: int) -> bytes:
    pieces = []
    while start < end and (piece := os.pread(fd, min(end - start, _PIECE), start)):
        pieces.append(piece)
        start += len(piece)
    return b"".join(pieces)


_FIXED_CALLS = (
    *(*("write",) * 6, *("read",) * 6, *("map",) * 6),
    *("sync", "forget", "reopen", "allocate"),
)
_CALLS = (
    *_FIXED_CALLS,
    *("truncate",) * 3,
    *("punch",) * 2,
    *("allocate",) * 3,
    *("seek",) * 2,
    *("append",) * 3,
    *("look",) * 2,
    "empty",
)
