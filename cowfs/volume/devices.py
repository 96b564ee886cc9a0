"""The number of the device that the base directory is on.

The kernel numbers devices anew at each boot, and some at each mount (loop devices, subvolumes of
btrfs, network file systems). With another number all files of the base would look replaced, and
what only the base has of them would be lost to older checkpoints. So the records take the new
number over, once, when the daemon opens a store; a file that is the same in inode number, size,
mtime and ctime proves that the file system is.

Threading: owned by the volume's thread, before it serves anything.
"""

from __future__ import annotations

import os

from cowfs.format import keys, records
from cowfs.types import ROOT_INO
from cowfs.volume.base import Base, fingerprint
from cowfs.volume.importing import ROOT_KEY, recorded_fingerprint
from cowfs.volume.volume import Volume


def follow_device(volume: Volume) -> bool:
    """Bring the records up to date if the base's device has another number than before; returns
    whether it has. Raises StoreFullError, StoreUnwritableError."""
    base = volume.base
    if base is None:
        return False
    now = os.fstat(base.fd).st_dev
    before = _former_device(volume, base, now)
    if before is None:
        return False
    reader, extra = volume.reader, volume.extra
    for key, value in reader.scan("base"):
        record = records.unpack_base(value)
        if record.dev == before:
            extra.put("base", key, records.pack_base(record._replace(dev=now)))
    for key, value in reader.scan("hardlink", keys.pack_id(before)):
        extra.delete("hardlink", key)
        extra.put("hardlink", keys.pack_id(now) + key[8:], value)
    root = reader.get("meta", ROOT_KEY)
    if root is not None and (record := records.unpack_base(root)).dev == before:
        extra.put("meta", ROOT_KEY, records.pack_base(record._replace(dev=now)))
    volume.sync()
    return True


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
