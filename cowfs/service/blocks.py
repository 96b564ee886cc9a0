"""The bytes of a state's regular files, block by block, from the store and from the base directory.

Threading: as the tree that it belongs to (service/content.py).
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Hashable, Iterator
from typing import NamedTuple

from cowfs.errors import (
    ContentLostError,
    DamagedRecordError,
    PermissionDeniedError,
    ThinnedError,
)
from cowfs.format import keys, records
from cowfs.store.snapshot import Snapshot
from cowfs.types import BLOCK_SIZE
from cowfs.volume.base import Base, Fingerprint, fingerprint
from cowfs.volume.importing import recorded_fingerprint

Block = tuple[int, Hashable, Callable[[], bytes]]
"""One block that may have bytes other than zero: its number, a key (two blocks with equal keys
have equal bytes) and what reads it. What is read may be shorter than the block: zeros follow."""
_DEEPEST = 65536


class Stored(NamedTuple):
    """A file that the store knows: its path for messages, sizes in bytes."""

    path: bytes
    content: int
    size: int
    base_size: int


class Unlisted(NamedTuple):
    """A file in a directory that nobody looked into: its path for messages, its place in the base,
    what it was when that was listed, and what tells it from others."""

    path: bytes
    place: bytes
    size: int
    seen: Fingerprint
    identity: Hashable


class Contents:
    """Reads the files of one state. base: None when the base directory is not there. name: of the
    state, for messages. thinned: whether some of it is not kept any more; of a file of which that
    is so no block can be read, since half a file is worse than none."""

    def __init__(
        self, snapshot: Snapshot, base: Base | None, name: str = "", *, thinned: bool = False
    ) -> None:
        self._snapshot = snapshot
        self._reader = snapshot.reader
        self._base = base
        self._name = name
        self._thinned = thinned

    def origin(self, thing: int) -> records.OriginRecord | None:
        """Where a directory (by ino) or a content lies in the base; None when it never did."""
        value = self._reader.get("origin", keys.pack_id(thing))
        return records.unpack_origin(value) if value is not None else None

    def base_path(self, origin: records.OriginRecord) -> bytes:
        """Path of a thing relative to the base directory. Raises DamagedRecordError."""
        parts = []
        while origin.parent:
            parts.append(origin.name)
            above = self.origin(origin.parent)
            if above is None or len(parts) > _DEEPEST:
                raise DamagedRecordError(what="origin record", detail=f"of {origin.name!r}")
            origin = above
        return b"/".join(reversed(parts))

    def is_thinned(self, content: int) -> bool:
        """Whether some of a content is not kept any more."""
        return self._thinned and self._snapshot.is_thinned(content)

    def stored(self, file: Stored) -> Iterator[Block]:
        """The blocks of a file that are not holes, ascending."""
        blocks = self._blocks(file)
        if not self.is_thinned(file.content):
            return blocks
        fail = _Fail(ThinnedError(path=os.fsdecode(file.path), where=self._name))
        return ((number, key, fail) for number, key, _ in blocks)

    def _blocks(self, file: Stored) -> Iterator[Block]:
        content, size, base_size = file.content, file.size, file.base_size
        origin = self.origin(content) if base_size else None
        reachable = origin is not None and origin.state != records.ORIGIN_DONE
        base_end = min(base_size, size) if reachable else 0
        at = 0
        for number, epoch, digest in self._extents(content):
            start = number * BLOCK_SIZE
            if start >= size:
                break
            if at < min(start, base_end):
                yield from self._base_blocks(file, at, min(start, base_end))
            at = start + BLOCK_SIZE
            # Extents of epoch 0 are sealed base content: they count only up to base_size.
            limit = min(BLOCK_SIZE, size - start)
            if not epoch:
                limit = min(limit, base_size - start)
            if digest == records.EXTENT_THINNED:
                # The same version in another state has the same bytes, whatever these were.
                error = ThinnedError(path=os.fsdecode(file.path), where=self._name)
                yield number, (content, number, epoch, digest), _Fail(error)
            elif digest and limit > 0:
                yield number, (digest, limit), _Load(self._snapshot, digest, limit)
        if at < base_end:
            yield from self._base_blocks(file, at, base_end)

    def _extents(self, content: int) -> Iterator[tuple[int, int, bytes]]:
        """(block number, epoch, hash or b"" for a hole or `EXTENT_THINNED`), ascending.

        A block that was given back to the base is what sealing stored of it, or not listed.
        """
        visible = self._snapshot.lineage.visible
        prefix = keys.pack_id(content)
        done = -1
        for key, digest in self._reader.scan("extent", prefix):
            number = keys.extent_block(key)
            if number == done:
                continue
            epoch = keys.epoch_of(key)
            if not visible(epoch):
                continue
            done = number
            if digest == records.EXTENT_BASE:
                sealed = self._reader.get("extent", keys.extent_key(content, number, 0))
                if sealed is None:
                    continue
                epoch, digest = 0, sealed
            yield number, epoch, digest

    def _base_blocks(self, file: Stored, start: int, end: int) -> Iterator[Block]:
        """Blocks [start, end) of a content that come from the base file; start is aligned."""
        try:
            fd = self._open_base(file)
        except (ContentLostError, PermissionDeniedError) as error:
            for number in range(start // BLOCK_SIZE, -(-end // BLOCK_SIZE)):
                yield number, (file.content, number), _Fail(error)
            return
        yield from _file_blocks(file.path, fd, start, end, file.content)

    def _open_base(self, file: Stored) -> int:
        """A descriptor of the base file behind a content; the caller closes it."""
        content, path, base = file.content, os.fsdecode(file.path), self._base
        origin = self.origin(content)
        if base is None or origin is None:
            raise ContentLostError(path=path, detail="the base directory is not there")
        value = self._reader.get("base", keys.base_key(origin.parent, origin.name))
        entry = records.unpack_base(value) if value is not None else None
        if origin.state == records.ORIGIN_LOST or entry is None or entry.content != content:
            raise ContentLostError(path=path, detail="its base file was changed outside")
        try:
            fd = base.cached_file(content, self.base_path(origin), recorded_fingerprint(entry))
        except OSError as error:
            raise base_error(file.path, error) from None
        if fd is None:
            raise ContentLostError(path=path, detail="its base file was changed outside")
        # The base closes its own descriptor when many others are opened meanwhile.
        return os.dup(fd)

    def unlisted(self, file: Unlisted) -> Iterator[Block]:
        """The blocks of a file that are not holes, ascending."""
        assert self._base is not None
        try:
            fd = self._base.open_file(file.place)
        except OSError as error:
            raise base_error(file.path, error) from None
        if fingerprint(os.fstat(fd)) != file.seen:
            os.close(fd)
            raise ContentLostError(
                path=os.fsdecode(file.path), detail="it is being changed outside"
            )
        yield from _file_blocks(file.path, fd, 0, file.size, file.identity)


def base_error(path: bytes, error: OSError) -> ContentLostError | PermissionDeniedError:
    """What it means for a path that the base directory gave an error."""
    text = os.fsdecode(path) or "."
    if error.errno in (errno.EACCES, errno.EPERM):
        return PermissionDeniedError(detail=f"{text} in the base directory")
    detail = f"the base directory cannot be read: {error.strerror}"
    return ContentLostError(path=text, detail=detail)


class _Load:
    """Reads one stored block."""

    __slots__ = ("digest", "limit", "snapshot")

    def __init__(self, snapshot: Snapshot, digest: bytes, limit: int) -> None:
        self.snapshot = snapshot
        self.digest = digest
        self.limit = limit

    def __call__(self) -> bytes:
        data = self.snapshot.block(self.digest)
        return data if len(data) <= self.limit else data[: self.limit]


class _Fail:
    """A block that cannot be read."""

    __slots__ = ("error",)

    def __init__(self, error: Exception) -> None:
        self.error = error

    def __call__(self) -> bytes:
        raise self.error


class _LoadBase:
    """Reads one block of an open base file."""

    __slots__ = ("fd", "offset", "path", "size")

    def __init__(self, path: bytes, fd: int, offset: int, size: int) -> None:
        self.path = path
        self.fd = fd
        self.offset = offset
        self.size = size

    def __call__(self) -> bytes:
        try:
            data = os.pread(self.fd, self.size, self.offset)
        except OSError as error:
            raise base_error(self.path, error) from None
        if len(data) != self.size:
            raise ContentLostError(path=os.fsdecode(self.path), detail="it is being cut outside")
        return data


def _file_blocks(path: bytes, fd: int, start: int, end: int, key: Hashable) -> Iterator[Block]:
    """Blocks [start, end) of a base file without its holes. Closes `fd`."""
    try:
        while start < end:
            try:
                start = max(start, os.lseek(fd, start, os.SEEK_DATA) & -BLOCK_SIZE)
            except OSError as error:
                if error.errno == errno.ENXIO:
                    return  # only a hole follows
            if start >= end:
                return
            number, size = start // BLOCK_SIZE, min(BLOCK_SIZE, end - start)
            yield number, (key, number, size), _LoadBase(path, fd, start, size)
            start += BLOCK_SIZE
    finally:
        os.close(fd)
