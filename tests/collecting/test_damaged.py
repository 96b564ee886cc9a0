"""Stores from which checkpoints were removed: `verify` sees damage of what is kept, and a repair
leaves what is kept as it is."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from cowfs.format import keys, records
from cowfs.service.repair import repair
from cowfs.service.verify import verify_store
from cowfs.store.env import open_store
from cowfs.store.snapshot import Reader
from tests.collecting.looking import State, collect_garbage, forget, look
from tests.support.volumes import Rig


@pytest.fixture
def kept(volume: Rig) -> dict[int, State]:
    """A closed store of which every checkpoint but each third was removed and collected, and what
    those show. Names, links, attributes, directories and contents change all the time."""
    rng, gone, kept = random.Random(3), [], {}
    volume.check = False
    volume.mkdir(b"d")
    for number in range(18):
        if number == 10:
            volume.restore("@~2")
        volume.create(b"d/%d" % number, rng.randbytes(300))
        volume.mkdir(b"d/dir%d" % number)
        volume.save(b"d/0", rng.randbytes(400))
        volume.setxattr(b"d", b"user.n", b"%d" % number)
        volume.setxattr(b"d/%d" % number, b"user.n", b"%d" % number)
        volume.link(b"d/%d" % number, b"l%d" % number)
        if number > 3 and number not in (10, 11):
            volume.unlink(b"l%d" % (number - 1))
            volume.rmdir(b"d/dir%d" % (number - 1))
            volume.rename(b"d/%d" % (number - 1), b"d/x%d" % number)
            volume.create(b"d/%d" % (number - 1), b"again")
        record = volume.checkpoint()
        if number % 3 == 2:
            kept[record.epoch] = look(volume, record.epoch)
        else:
            gone.append(record.id)
    forget(volume, gone)
    assert collect_garbage(volume).complete
    for epoch, state in kept.items():
        assert look(volume, epoch) == state
    volume.close()
    return kept


def damaged(store: Path, table: str, rng: random.Random) -> bytes:
    """Take out a record of an epoch that is no state, as a defect of a program would."""
    opened = open_store(store, writable=True)
    try:
        with opened.begin(write=True) as txn, Reader(opened, txn) as reader:
            states = {
                keys.unpack_id(key)
                for key, value in reader.scan("epoch")
                if records.decode(value, records.EpochRecord).checkpoint
            }
            head = reader.branch("main").head
            found = [
                key
                for key, value in reader.scan(table)
                if 0 < _epoch(table, key) < head and _epoch(table, key) not in states
            ]
            key = rng.choice(found)
            txn._raw.delete(key, db=opened.tables[table].handle)
            return key
    finally:
        opened.close()


def _epoch(table: str, key: bytes) -> int:
    return keys.unpack_id(key) if table == "change" else keys.epoch_of(key)


def problems(store: Path) -> list[str]:
    opened = open_store(store, writable=False, damaged=True)
    try:
        with Reader(opened) as reader:
            return [problem.check for problem in verify_store(reader, None).problems]
    finally:
        opened.close()


def mend(rig: Rig) -> None:
    assert rig.base_fd is not None
    repair(rig.store, rig.base_fd, dry_run=False, progress=lambda phase, done, total: None)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("table", ["dirent", "link", "change"])
def test_what_others_tell_comes_back(
    volume: Rig, kept: dict[int, State], table: str, seed: int
) -> None:
    """Of a kept version that a removed epoch wrote."""
    key = damaged(volume.store, table, random.Random(seed))
    assert problems(volume.store), key.hex()
    mend(volume)
    assert problems(volume.store) == []
    volume.start()
    for epoch, state in kept.items():
        assert look(volume, epoch) == state


@pytest.mark.parametrize("table", ["inode", "xattr", "extent"])
def test_what_nothing_tells_is_missed(volume: Rig, kept: dict[int, State], table: str) -> None:
    assert problems(volume.store) == []
    damaged(volume.store, table, random.Random(1))
    assert problems(volume.store)


def test_a_repair_brings_no_checkpoint_back(volume: Rig, kept: dict[int, State]) -> None:
    """Operations still name those that were removed."""
    opened = open_store(volume.store, writable=True)
    with opened.begin(write=True) as txn:
        txn.put(b"next_epoch", keys.pack_id(2), db=opened.tables["meta"])
    opened.close()
    mend(volume)
    assert problems(volume.store) == []
    volume.start()
    with Reader(volume.volume.store) as reader:
        assert reader.count("checkpoint") == len(kept) + 2  # the first, and a rescue
    for epoch, state in kept.items():
        assert look(volume, epoch) == state
