"""Sealing the base: reading its content into the store, so that nothing outside can damage history.

Files are read in the calling thread, in portions; the thread that owns the volume only takes the
blocks. What is committed stays: a run that is stopped is continued by the next one, within a large
file, too.

Threading: for the threads that an `Engine` is for. Several runs at once do no harm.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from cowfs.errors import NotADirectoryPathError, StoreFullError, UnknownPathError
from cowfs.format import keys, records
from cowfs.service.engine import Engine, commit
from cowfs.service.walking import visit
from cowfs.store import sums
from cowfs.store.env import Store
from cowfs.store.lineage import Lineage
from cowfs.store.snapshot import Reader, Snapshot
from cowfs.volume import namespace, sealing
from cowfs.volume.posix import PosixError

Progress = Callable[..., None]
"""Called with phase, done, total, bytes and path."""

_START = Lineage(((0, 0),))
_PORTION_BLOCKS = 16
_COMMIT_BYTES = 8 << 20
_COMMIT_FILES = 500
_BATCH = 500
_TELL_SECONDS = 0.1
_BUSY_SECONDS = 0.05


class Pace:
    """How fast it may go.

    rate: bytes a second, 0 for as fast as it can. busy: set while others use the mount; nothing is
    read then. stop: ends the run.
    """

    def __init__(
        self,
        rate: float = 0.0,
        busy: threading.Event | None = None,
        stop: threading.Event | None = None,
    ) -> None:
        self._rate = rate
        self._busy = busy
        self._stop = stop or threading.Event()
        self._due = 0.0

    @property
    def stopped(self) -> bool:
        """Whether the run shall end."""
        return self._stop.is_set()

    def spend(self, size: int) -> bool:
        """Wait until `size` more bytes may be read; False when the run shall end."""
        while self._busy is not None and self._busy.is_set() and not self._stop.is_set():
            self._stop.wait(_BUSY_SECONDS)
        if self._rate:
            moment = time.monotonic()
            self._due = max(moment, self._due) + size / self._rate
            self._stop.wait(self._due - moment)
        return not self._stop.is_set()


@dataclass(slots=True)
class Sealed:
    """What a run did. unsealed: files, and directories not listed, that only the base has now.
    lost: files whose old content was changed outside before. problems: what could not be sealed,
    per path. complete: all that was asked for is in the store."""

    files: int = 0
    bytes: int = 0
    unsealed: int = 0
    lost: int = 0
    complete: bool = False
    problems: list[dict[str, str]] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Plain data for answers."""
        return {name: getattr(self, name) for name in self.__slots__}


def sealing_state(reader: Reader) -> dict[str, int]:
    """How much history still rests on the base directory: files whose content is not in the store
    (`unsealed`; directories that were not listed yet count as one), and files whose old content
    was changed outside before it was saved (`lost`). For any thread, with a reader of its own."""
    states = [0, 0, 0]
    for _, value in reader.scan("origin"):
        states[value[0]] += 1
    return {
        "unsealed": states[records.ORIGIN_UNLISTED],
        "lost": states[records.ORIGIN_LOST],
    }


class SealingState:
    """`sealing_state` for who asks again and again: a million records take 0.6 s, so they are read
    only when the sum of their checksums (store/sums.py) says that they changed. For any thread."""

    def __init__(self) -> None:
        self._known: tuple[bytes, dict[str, int]] | None = None

    def __call__(self, reader: Reader) -> dict[str, int]:
        kept = reader.get("meta", sums.name_of("origin", b""))
        known = self._known
        if kept is not None and known is not None and known[0] == kept:
            return dict(known[1])
        found = sealing_state(reader)
        self._known = (kept, found) if kept is not None else None
        return dict(found)


def seal(engine: Engine, paths: list[bytes], pace: Pace, progress: Progress) -> Sealed:
    """Seal the files at and below `paths` of the head, [] for everything, older states included.

    Raises UnknownPathError, NotADirectoryPathError (the base is not there), StoreFullError.
    """
    return _Run(engine, pace, progress).run(paths)


def seal_content(
    engine: Engine, content: int, open_file: Callable[[bytes], int]
) -> list[dict[str, str]]:
    """Seal one content in portions of bounded memory; what is wrong when the base has it no more.

    open_file: opens the base file at a path for reading. Raises StoreFullError.
    """
    run = _Run(engine, Pace(), lambda **_: None)
    run.open_file = open_file
    run.one(content)
    return run.result.problems


class _Run:
    def __init__(self, engine: Engine, pace: Pace, progress: Progress) -> None:
        self.result = Sealed()
        self._engine = engine
        self._volume = engine.volume
        self._pace = pace
        self._progress = progress
        self._total = 0
        self._seen = 0
        self._waiting = 0
        self._told = 0.0
        self.open_file: Callable[[bytes], int] = self._open_file

    def _open_file(self, path: bytes) -> int:
        assert self._volume.base is not None
        return self._volume.base.open_file(path)

    def run(self, paths: list[bytes]) -> Sealed:
        if self._volume.base is None:
            raise NotADirectoryPathError(path="the base directory")
        tops = [self._find(path) for path in paths] or [1]
        self._tell("list", b"", at_once=True)
        files = self._list(tops)
        commit(self._engine)
        whole = 1 in tops
        with Reader(self._volume.store) as reader:
            self._total = sealing_state(reader)["unsealed"] if whole else len(files)
        for content in _unsealed(self._volume.store) if whole else self._contents_of(files):
            if self._pace.stopped:
                break
            self.one(content)
        commit(self._engine)
        with Reader(self._volume.store) as reader:
            state = sealing_state(reader)
        self.result.unsealed, self.result.lost = state["unsealed"], state["lost"]
        if whole and not self._pace.stopped and state["unsealed"] > len(self.result.problems):
            self._explain()
        self.result.complete = not (self._pace.stopped or self.result.problems)
        self._tell("seal", b"", at_once=True)
        return self.result

    def _explain(self) -> None:
        """Name what is left beside the files that could not be read."""
        known = {row["path"] for row in self.result.problems}

        def path(thing: int) -> bytes:
            origin = self._volume.importer.origin(thing)
            return self._volume.importer.base_path(origin) if origin is not None else b""

        for thing in _unsealed(self._volume.store):
            where = self._engine.call(lambda: path(thing))  # noqa: B023
            if os.fsdecode(where) not in known:
                self._problem(where, "cannot be read")

    def _find(self, path: bytes) -> int:
        """Inode number of a path of the head."""

        def find() -> int | None:
            ino = 1
            for name in path.split(b"/") if path else ():
                try:
                    inode = namespace.lookup(self._volume.main, ino, name)
                except PosixError:
                    return None
                if inode is None:
                    return None
                ino = inode.ino
            return ino

        ino = self._engine.call(find)
        if ino is None:
            raise UnknownPathError(path=os.fsdecode(path), where="the workspace")
        return ino

    def _list(self, tops: list[int]) -> list[int]:
        """Bring the directories at and below `tops` up to date; returns all else in them, unless
        the background walk has seen everything and it is not needed."""
        if tops == [1] and self._volume.importer.complete:
            return []
        files, waiting = [], deque(tops)
        seen = set(tops)  # in a damaged store a directory may lie in itself
        while waiting and not self._pace.stopped:
            ino = waiting.popleft()
            if self._engine.call(lambda: self._is_dir(ino)):  # noqa: B023
                directories, others = visit(self._engine, ino)
                waiting.extend(ino for ino in directories if ino not in seen)
                seen.update(directories)
                files += others
            else:
                files.append(ino)
        return files

    def _is_dir(self, ino: int) -> bool:
        try:
            return self._volume.main.inode(ino).is_dir
        except PosixError:
            return False

    def _contents_of(self, files: list[int]) -> Iterator[int]:
        """What the inodes have now, and what they came with (a first content has their number)."""
        for ino in dict.fromkeys(files):
            yield ino

            def content() -> int:
                try:
                    inode = self._volume.main.inode(ino)  # noqa: B023
                except PosixError:
                    return 0
                return inode.content if inode.is_file else 0

            now = self._engine.call(content)
            if now not in (0, ino):
                yield now

    def one(self, content: int) -> None:
        """Seal one content, or note why it cannot be."""
        engine, view = self._engine, self._volume.main
        self._seen += 1
        try:
            what = engine.call(lambda: sealing.source(view, content))
        except PosixError:
            return  # lost before; status counts it
        if what is None:
            return
        try:
            fd = self.open_file(what.path)
            try:
                whole = self._read(fd, what)
            finally:
                os.close(fd)
        except FileNotFoundError:
            self._changed(what)
        except sealing.ChangedError:
            self._changed(what)
        except OSError as error:
            self._problem(what.path, f"cannot be read: {error.strerror}")
        else:
            if whole and engine.call(lambda: sealing.finish(view, content)):
                self.result.files += 1
                self._waiting += 1
                if self._waiting >= _COMMIT_FILES or self._volume.extra.size >= _COMMIT_BYTES:
                    self._commit()

    def _read(self, fd: int, what: sealing.Source) -> bool:
        """Hand the blocks in; False when the run ended before the file."""
        view = self._volume.main
        following: int | None = self._resume_at(what) if what.size > _COMMIT_BYTES else 0
        while following is not None:
            blocks, following = sealing.read(fd, what, following, _PORTION_BLOCKS)
            size = sum(len(data) for _, data in blocks)
            self._need_room(size)
            self._engine.call(lambda: sealing.take(view, what, blocks))  # noqa: B023
            self.result.bytes += size
            if self._volume.extra.size >= _COMMIT_BYTES:
                self._commit()
            self._tell("seal", what.path)
            if not self._pace.spend(size) and following is not None:
                return False
        return True

    def _need_room(self, size: int) -> None:
        """Sealing must not fill the disk for those who write. Raises StoreFullError."""
        volume = self._volume

        def fits() -> bool:
            return volume.has_room(volume.extra.size + size)

        if not self._engine.call(fits):
            self._commit()  # what waits may have become smaller
            if not self._engine.call(fits):
                detail = f"there is no room for {size:,} bytes more of the base directory"
                raise StoreFullError(path=str(volume.store.path), detail=detail)

    def _resume_at(self, what: sealing.Source) -> int:
        """The block after the last one that a run before this one has stored."""
        last = -1
        with Reader(self._volume.store) as reader:
            for number, _ in Snapshot(reader, _START).extents(what.content):
                last = number
        return last + 1

    def _commit(self) -> None:
        self._waiting = 0
        commit(self._engine)

    def _changed(self, what: sealing.Source) -> None:
        """It is not what was recorded: changed outside, which is adopted, or moved by an apply."""
        view = self._volume.main

        def look() -> bool:
            try:
                now = sealing.source(view, what.content)
            except PosixError:
                return True
            if now is not None and now == what:
                self._volume.external.files.changed(view, what.content)
                return True
            return False

        if self._engine.call(look):
            self._problem(what.path, "changed outside before it was sealed")
        else:
            self.one(what.content)

    def _problem(self, path: bytes, detail: str) -> None:
        self.result.problems.append({"path": os.fsdecode(path), "detail": detail})

    def _tell(self, phase: str, path: bytes, *, at_once: bool = False) -> None:
        moment = time.monotonic()
        if not at_once and moment - self._told < _TELL_SECONDS:
            return
        self._told = moment
        self._progress(
            phase=phase,
            done=self._seen,
            total=max(self._total, self._seen),
            bytes=self.result.bytes,
            path=path.decode("utf-8", "surrogateescape"),
        )


def _unsealed(store: Store) -> Iterator[int]:
    """The contents, and directories, that are only in the base, in portions: a read transaction
    that lasts would keep the store from using its free pages again."""
    after = 0
    while True:
        found: list[int] = []
        with Reader(store) as reader:
            cursor = reader.cursor("origin")
            more = cursor.set_range(keys.pack_id(after + 1))
            while more and len(found) < _BATCH:
                after = keys.unpack_id(cursor.key())
                if cursor.value()[0] == records.ORIGIN_UNLISTED:
                    found.append(after)
                more = cursor.next()
        yield from found
        if not more:
            return
