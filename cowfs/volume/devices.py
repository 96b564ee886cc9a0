"""The number of the device that the base directory is on.

The kernel numbers devices anew at each boot, and some at each mount (loop devices, subvolumes of
btrfs, network file systems). With another number all files of the base would look replaced, and
what only the base has of them would be lost to older checkpoints. So the records take the new
number over, once, when the daemon opens a store; a file that is the same in inode number, size,
mtime and ctime proves that the file system is.

Threading: owned by the volume's thread, before it serves anything.
"""

from __future__ import annotations

import logging
import os

from cowfs.errors import DamagedRecordError
from cowfs.format import keys, records
from cowfs.types import ROOT_INO
from cowfs.volume.base import Base, fingerprint
from cowfs.volume.importing import ROOT_KEY, recorded_fingerprint
from cowfs.volume.volume import Volume

log = logging.getLogger(__name__)


def follow_device(volume: Volume) -> bool:
    """Bring the records up to date if the base's device has another number than before; returns
    whether it has. Raises StoreFullError, StoreUnwritableError."""
    base = volume.base
    if base is None:
        return False
    now = os.fstat(base.fd).st_dev
    try:
        before = _former_device(volume, base, now)
        if before is None:
            return False
        bases, links = _renumbered(volume, before, now)
    except DamagedRecordError as error:
        log.warning("the number of the base's device is not looked at: %s", error)
        return False
    extra = volume.extra
    for table, key, value in bases:
        extra.put(table, key, value)
    for key, value in links:
        extra.delete("hardlink", key)
        extra.put("hardlink", keys.pack_id(now) + key[8:], value)
    volume.sync()
    return True


def _renumbered(
    volume: Volume, before: int, now: int
) -> tuple[list[tuple[str, bytes, bytes]], list[tuple[bytes, bytes]]]:
    """(table, key, new value) of what names the device, and the records whose keys do."""
    reader = volume.reader
    rows = [("base", key, value) for key, value in reader.scan("base")]
    root = reader.get("meta", ROOT_KEY)
    if root is not None:
        rows.append(("meta", ROOT_KEY, root))
    found = [(table, key, records.unpack_base(value)) for table, key, value in rows]
    bases = [
        (table, key, records.pack_base(record._replace(dev=now)))
        for table, key, record in found
        if record.dev == before
    ]
    return bases, list(reader.scan("hardlink", keys.pack_id(before)))


def _former_device(volume: Volume, base: Base, now: int) -> int | None:
    """The number that the device had, None when it is the same or when nothing proves another."""
    for key, value in volume.reader.scan("base", keys.pack_id(ROOT_INO)):
        record = records.unpack_base(value)
        if record.dev == now:
            return None
        st = base.stat(key[8:])
        if (
            st is not None
            and st.st_dev == now
            and fingerprint(st)[1:] == recorded_fingerprint(record)[1:]
        ):
            return record.dev
    return None
