"""Opening workspaces: store and base directory together, for writing or for reading.

`workspace.json` in the store says which directory it belongs to.

Threading: an open workspace belongs to the thread that opened it.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import os
import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from cowfs.errors import StoreDamagedError, StoreForeignError, StoreMissingError
from cowfs.format import records
from cowfs.service.selectors import Point, resolve
from cowfs.store.env import LmdbError, Store, open_store, store_exists, sync_directory
from cowfs.store.guard import file_number, must_be_safe
from cowfs.store.rewriting import Progress, silent
from cowfs.store.snapshot import Reader, Snapshot
from cowfs.volume.base import Base, BaseEntry, read_xattrs
from cowfs.volume.devices import follow_device
from cowfs.volume.volume import MAIN, Volume, create_volume, open_volume

log = logging.getLogger(__name__)

DESCRIPTION = "workspace.json"


@dataclass(frozen=True, slots=True)
class Description:
    """What a store says of its workspace. Absolute paths. quota: bytes, 0 for no limit. file: the
    number of its data file when it was last mounted (store/guard.py), 0 when it never was."""

    base: str
    mountpoint: str
    quota: int = 0
    file: int = 0


def describe(store: Path) -> Description | None:
    """The store's description, None when it has none or it makes no sense."""
    try:
        text = (store / DESCRIPTION).read_text(encoding="utf-8", errors="surrogateescape")
        row = json.loads(text)
        base, mountpoint = row["base"], row["mountpoint"]
        quota, file = row.get("quota", 0), row.get("file", 0)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    if not isinstance(base, str) or not isinstance(mountpoint, str):
        return None
    if not isinstance(quota, int) or not isinstance(file, int):
        return None
    return Description(base, mountpoint, max(quota, 0), file)


def write_description(store: Path, description: Description) -> None:
    """Replace the description atomically; nothing is written when it says the same already. The
    number of the data file is put in."""
    description = replace(description, file=file_number(store))
    if describe(store) == description:
        return
    row: dict[str, object] = {
        "version": 1,
        "base": description.base,
        "mountpoint": description.mountpoint,
        "file": description.file,
    }
    if description.quota:
        row["quota"] = description.quota
    new = store / (DESCRIPTION + ".new")
    with open(new, "w", encoding="utf-8", errors="surrogateescape") as file:
        json.dump(row, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    os.replace(new, store / DESCRIPTION)
    sync_directory(store)


def open_base(path: str) -> int:
    """A descriptor of the base directory; the caller closes it. Raises OSError."""
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def open_for_writing(
    store: Path, base_path: str, base_fd: int | None, progress: Progress = silent
) -> Volume:
    """The volume of a workspace; the store is made when there is none yet, and upgraded, with
    `progress`, when it is of an older version of the format.

    Raises StoreForeignError, StoreLockedError, StoreFormatError, StoreDamagedError,
    UpgradeFailedError.
    """
    known = describe(store)
    if known is not None and known.base != base_path:
        raise StoreForeignError(store=str(store), other=known.base, path=base_path)
    must_be_safe(store, known.file if known is not None else 0)
    with _damage_is_told(store):
        volume = _open_or_create(store, base_fd, progress)
    try:
        if known is not None:
            volume.writer.set_quota(known.quota)
        if follow_device(volume):
            log.info("the base is on a device with another number than before")
    except BaseException:
        volume.close()
        raise
    return volume


def _open_or_create(store: Path, base_fd: int | None, progress: Progress) -> Volume:
    base = Base(base_fd) if base_fd is not None else None
    if store_exists(store) and (store / DESCRIPTION).exists():
        return open_volume(store, base, progress)
    if base_fd is None:
        raise StoreMissingError(path=str(store))
    if store_exists(store):
        return open_volume(store, base, progress)
    place = os.fsencode(f"/proc/self/fd/{base_fd}/.")
    root = BaseEntry(b"", os.fstat(base_fd), b"", read_xattrs(place))
    return create_volume(store, base, root, secrets.token_hex(6))


class ReadOnly:
    """A workspace opened for reading: a snapshot of the last commit, and the base directory.

    branch: read when it is first asked for, so that a damaged one does not keep `verify` from
    looking at the rest. Raises DamagedRecordError then.
    """

    def __init__(self, store: Store, reader: Reader, base_fd: int | None) -> None:
        self.store = store
        self.reader = reader
        self.base = Base(base_fd) if base_fd is not None else None

    @functools.cached_property
    def branch(self) -> records.BranchRecord:
        """The branch `main`."""
        return self.reader.branch(MAIN)

    def point(self, selector: str) -> Point:
        """Resolve a selector. Raises UnknownCheckpointError, AmbiguousCheckpointError."""
        return resolve(self.reader, self.reader.lineage(self.branch.head), selector, time.time_ns())

    def snapshot(self, point: Point) -> Snapshot:
        """The tree of a state."""
        return Snapshot(self.reader, point.lineage)

    def head(self) -> records.EpochRecord:
        """The open epoch's record."""
        return self.reader.epoch(self.branch.head)


@contextlib.contextmanager
def _damage_is_told(store: Path) -> Iterator[None]:
    """Pages that LMDB does not take for what they should be. Raises StoreDamagedError."""
    try:
        yield
    except LmdbError as error:
        raise StoreDamagedError(path=str(store), detail=str(error)) from None


@contextlib.contextmanager
def reading(store: Path, base_fd: int | None, *, damaged: bool = False) -> Iterator[ReadOnly]:
    """Open a workspace for reading; `damaged` as in `open_store`, whose errors it raises.

    A file that was never mounted here is looked at first; `verify` looks at it itself.
    """
    known = describe(store)
    if not damaged and (known is None or known.file != file_number(store)):
        must_be_safe(store, 0)
    opened = open_store(store, writable=False, damaged=damaged)
    try:
        with _damage_is_told(store), Reader(opened) as reader:
            workspace = ReadOnly(opened, reader, base_fd)
            try:
                yield workspace
            finally:
                if workspace.base is not None:
                    workspace.base.forget()
    finally:
        opened.close()
