"""Records that nothing can refer to: their keys are no keys, or of an epoch that never was.

They are set aside, so that no search meets them. An epoch of which change records, checkpoints or
operations tell did exist: what belongs to it stays.

Threading: owned by the thread that repairs.
"""

from __future__ import annotations

from cowfs.errors import DamagedRecordError
from cowfs.format import codec, keys, records
from cowfs.service.repair.bench import Bench
from cowfs.service.repair.epochs import decodable
from cowfs.service.verify.values import damaged_dirent_key, damaged_inode_key, damaged_xattr
from cowfs.types import BLOCK_SIZE

_LAST_BLOCK = ((1 << 63) - 1) // BLOCK_SIZE
_CHECKS = {"record", "record-epoch", "xattr-name"}


def set_aside_strays(bench: Bench) -> bool:
    """Whether there were any."""
    if not bench.checks & _CHECKS:
        return False
    epochs = _epochs(bench)
    for table in (
        "inode",
        "dirent",
        "xattr",
        "extent",
        "block",
        "epoch",
        "operation",
        "checkpoint",
    ):
        for key, value in bench.reader.scan(table):
            if fault := _key_fault(table, key, value):
                bench.set_aside(table, key, key.hex(), fault)
            elif table in ("inode", "dirent", "xattr", "extent"):
                epoch = keys.epoch_of(key)
                if epoch not in epochs:
                    bench.set_aside(table, key, key.hex(), f"nothing tells of an epoch {epoch}")
    return bench.apply()


def _epochs(bench: Bench) -> set[int]:
    """Every epoch that anything but a single version tells of."""
    found = set(bench.scan.history.epochs)
    found |= {keys.unpack_id(key) for key, _ in bench.reader.scan("change")}
    found |= {r.epoch for r in decodable(bench, "checkpoint", records.CheckpointRecord).values()}
    for record in decodable(bench, "operation", records.OperationRecord).values():
        found |= {record.before, record.after}
    return found


def _key_fault(table: str, key: bytes, value: bytes) -> str:
    """Why a record can never be found by its key, "" when it can."""
    if table == "inode":
        return damaged_inode_key(key)
    if table == "dirent":
        return damaged_dirent_key(key)
    if table == "xattr":
        fault = damaged_xattr(key, b"")
        return fault[1] if fault else ""
    if table == "block":
        return "" if len(key) == codec.HASH_SIZE else "its key is no hash"
    if table == "extent":
        sound = len(key) == 24 and keys.extent_block(key) <= _LAST_BLOCK
        return "" if sound else "no file has such a block"
    if table == "checkpoint":
        try:
            records.decode(value, records.CheckpointRecord)
        except DamagedRecordError:
            return "it cannot be read, and nothing else tells of it"
        return ""
    if table == "operation":
        try:
            records.decode(value, records.OperationRecord)
        except DamagedRecordError:
            return "it cannot be read, and nothing else tells of it"
    return "" if len(key) == 8 else "its key is no number"
