"""The files of a copy of a conversation: all of them get their names, or nothing is left of them.

1. A record in `meta` says which temporary names there will be (`prepared`); it is committed.
2. The files are written under those names, beside their places, and synced.
3. One transaction group, that of the restore if there is one, makes the record `committed`.
4. The files get their names, by link(2), which replaces nothing; then the record goes.

Whoever opens the store for writing after a crash removes the temporary files of a record that is
`prepared`, and goes on with step 4 of one that is `committed` (`finish_all`).

Threading: `add` belongs to the thread that owns the volume, the rest is for the threads that an
`Engine` is for.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import logging
import os
import secrets
from collections.abc import Callable, Iterable, Mapping

import msgspec

from cowfs.errors import DamagedRecordError, NotCopyableConversationError
from cowfs.format import records
from cowfs.format.copying import (
    COMMITTED,
    COPYING,
    PREPARED,
    CopyingRecord,
    copying_key,
    copying_session,
    fault,
    temporary_name,
)
from cowfs.service.engine import Engine, commit
from cowfs.service.workspace import describe
from cowfs.store.group import TransactionGroup
from cowfs.store.snapshot import Reader
from cowfs.store.steps import reached
from cowfs.volume.volume import Volume

log = logging.getLogger(__name__)

PROBLEM = "conversation"
"""The kind of what `status` says when a file cannot get its name."""
_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_NO_LINKS = frozenset((errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK))
"""What link(2) says where a file system has no hard links."""


class Placement:
    """The files of one copy."""

    def __init__(self, engine: Engine, session: str, files: Mapping[str, bytes]) -> None:
        """session: id of the copy. files: path to bytes. Nothing is done yet. Raises
        NotCopyableConversationError for places where the files cannot go."""
        self._engine = engine
        self._key = copying_key(session)
        self._files = {os.fsencode(path): data for path, data in files.items()}
        token = secrets.token_hex(4)
        self._record = CopyingRecord(
            PREPARED,
            tuple(
                (os.path.join(os.path.dirname(path), temporary_name(token, n)), path)
                for n, path in enumerate(self._files)
            ),
            _missing_directories(self._files),
        )
        if detail := self._obstacle():
            raise NotCopyableConversationError(detail=detail)

    def _obstacle(self) -> str:
        known = describe(self._engine.volume.store.path)
        tops = {known.base, known.mountpoint} if known is not None else set()
        for path in self._files:
            text = os.fsdecode(path)
            if os.path.lexists(path):
                return f"{text} is there already"
            above = os.path.realpath(os.path.dirname(path))
            for top in map(os.fsencode, tops):
                if above == top or above.startswith(top.rstrip(b"/") + b"/"):
                    return f"{text} would lie in the workspace, which is restored itself"
        return fault(self._record)

    def write(self) -> None:
        """Put the files beside their places. Raises NotCopyableConversationError, StoreFullError:
        nothing is left of them then."""
        reached("copy.begin")
        self._put(self._record)
        commit(self._engine)
        reached("copy.prepared")
        try:
            _write(self._record, self._files)
        except OSError as error:
            self.discard()
            where = f" ({os.fsdecode(error.filename)})" if error.filename else ""
            detail = f"its files cannot be written: {error.strerror or error}{where}"
            raise NotCopyableConversationError(detail=detail) from None
        reached("copy.written")

    def _put(self, record: CopyingRecord) -> None:
        value = records.encode(record)
        self._engine.call(lambda: self._engine.volume.extra.put("meta", self._key, value))

    def add(self, group: TransactionGroup) -> None:
        """The files shall have their names when this group is committed."""
        self._record = msgspec.structs.replace(self._record, state=COMMITTED)
        group.put("meta", self._key, records.encode(self._record))

    def discard(self) -> None:
        """Take the temporary files away; the group of `add` is not and will not be committed."""
        _remove(self._record)
        self._drop()

    def finish(self) -> None:
        """Give the files their names; the group of `add` is committed."""
        reached("copy.committed")
        volume = self._engine.volume

        def tell(path: bytes, detail: str) -> None:
            self._engine.call(lambda: volume.problem(PROBLEM, path, detail))

        if _give_names(self._record, tell):
            self._drop()
            reached("copy.done")

    def _drop(self) -> None:
        """The record has done its work. One that stays does no harm: `finish_all` drops it."""
        try:
            self._engine.call(lambda: self._engine.volume.extra.delete("meta", self._key))
            commit(self._engine)
        except Exception as error:
            log.warning("the record of a copy of a conversation stays: %s", error)


def finish_all(volume: Volume) -> None:
    """Finish what a crash has interrupted, for who has just opened a volume. That a record goes is
    part of the next transaction group."""
    with Reader(volume.store) as reader:
        found = list(reader.scan("meta", COPYING, damaged=lambda key, error: None))
    for key, value in found:
        try:
            record = records.decode(value, CopyingRecord)
        except DamagedRecordError:
            continue  # `verify` tells of it
        if fault(record):
            continue
        log.info("finishing a copy of a conversation, session %s", copying_session(key))
        if record.state == PREPARED:
            _remove(record)
        elif not _give_names(record, functools.partial(volume.problem, PROBLEM)):
            continue
        volume.extra.delete("meta", key)


def _missing_directories(files: Iterable[bytes]) -> tuple[bytes, ...]:
    """Those that must be made, outermost first."""
    missing = set()
    for path in files:
        above = os.path.dirname(path)
        while not os.path.lexists(above):
            missing.add(above)
            above = os.path.dirname(above)
    return tuple(sorted(missing, key=len))


def _write(record: CopyingRecord, files: Mapping[bytes, bytes]) -> None:
    """Write the temporary files; with their directories they are on stable storage then. Raises
    OSError."""
    for directory in record.directories:
        os.mkdir(directory, 0o700)
        _give_away(directory)
    for temporary, path in record.files:
        fd = os.open(temporary, _FLAGS, 0o600)
        with open(fd, "wb") as file:
            file.write(files[path])
            file.flush()
            os.fsync(fd)
        _give_away(temporary)
    above = {os.path.dirname(path) for path in record.directories}
    for directory in above.union(os.path.dirname(path) for _, path in record.files):
        _sync(directory)


def _give_away(path: bytes) -> None:
    """What root makes for somebody belongs to who has the directory that it is in."""
    if os.geteuid() == 0:
        owner = os.lstat(os.path.dirname(path))
        os.lchown(path, owner.st_uid, owner.st_gid)


def _sync(directory: bytes) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _remove(record: CopyingRecord) -> None:
    """Take away what there is of temporary files, and of directories that nobody uses."""
    for temporary, _ in record.files:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
    for directory in reversed(record.directories):
        with contextlib.suppress(OSError):
            os.rmdir(directory)


def _give_names(record: CopyingRecord, tell: Callable[[bytes, str], None]) -> bool:
    """Give the files their names, as far as they do not have them yet; False when that must be
    tried again later. tell: hears of what is wrong with a path."""
    done = True
    for temporary, path in record.files:
        try:
            fault = _give_name(temporary, path)
        except OSError as error:
            fault = f"it has the name {os.fsdecode(temporary)} still: {error.strerror}"
            done = False
        if fault:
            tell(path, fault)
    reached("copy.named")
    return done


def _give_name(temporary: bytes, path: bytes) -> str:
    """What is wrong, for good. Raises OSError for what may be right at another time."""
    try:
        os.link(temporary, path, follow_symlinks=False)
    except FileExistsError:
        if not _is_one(temporary, path):
            os.unlink(temporary)
            return "another file has this name: the copy of the conversation was given up"
    except FileNotFoundError:
        _sync(os.path.dirname(path))  # is the directory there?
        return "" if os.path.lexists(path) else "the copy of the conversation is gone"
    except OSError as error:
        if error.errno not in _NO_LINKS or os.path.lexists(path):
            raise
        os.rename(temporary, path)
    reached("copy.linked")
    with contextlib.suppress(FileNotFoundError):
        os.unlink(temporary)
    _sync(os.path.dirname(path))
    return ""


def _is_one(temporary: bytes, path: bytes) -> bool:
    """Whether both are the same file."""
    return os.path.samestat(os.lstat(temporary), os.lstat(path))
