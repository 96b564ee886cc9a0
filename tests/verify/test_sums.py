"""Sums of records: one that is gone, or another one than it was, is missed; and they stay right."""

from __future__ import annotations

import pytest

from cowfs.format import keys
from cowfs.store.sums import SUMMED, VERSIONED
from tests.support.volumes import START, Rig
from tests.verify.sample import Sample, noise
from tests.verify.test_fields import prepare, target
from tests.verify.test_repair import mend

EXPECTED = {
    "xattr": ("epoch 1", {"one", "two", "lost", "now"}),
    "extent": ("epoch 4", {"now"}),
}


def drop(sample: Sample, table: str) -> bytes:
    """Take the record out that `target` chooses, without a trace."""
    with sample.open() as hands:
        prepare(hands, table)
        key = target(hands, table)
    with sample.open(recount=False) as hands:
        hands.drop(table, key)
    return key


@pytest.mark.parametrize("table", sorted(VERSIONED))
def test_one_that_is_gone_is_missed_in_its_epoch(sample: Sample, table: str) -> None:
    drop(sample, table)
    (found,) = sample.verify().problems
    thing, checkpoints = EXPECTED[table]
    assert (found.check, found.table, found.thing) == ("record-count", table, thing)
    assert {sample.names[name] for name in found.checkpoints} == checkpoints


def test_one_with_another_value_is_missed(sample: Sample) -> None:
    key = keys.xattr_key(sample.inos["src/main"], b"user.a", 1)
    with sample.open(recount=False) as hands:
        hands.put("xattr", key, b"\x01another")
    (found,) = sample.verify().problems
    assert (found.check, found.table, found.thing) == ("record-sum", "xattr", "epoch 1")


@pytest.mark.parametrize("table", sorted(SUMMED))
def test_a_repair_says_it_once(sample: Sample, table: str) -> None:
    drop(sample, table)
    done = mend(sample)
    assert done.before.count
    assert table in {action.table for action in done.actions}
    assert sample.verify().problems == []
    assert mend(sample).actions == []


def test_they_stay_right_whatever_happens(sample: Sample) -> None:
    """As `verify` counts them, after each kind of commit."""
    rig = Rig(sample.store, sample.base)
    rig.setxattr(b"src/main", b"user.a", b"2")
    rig.setxattr(b"src/main", b"user.b", b"1")
    rig.create(b"new", noise(7, 70_000))
    rig.write(b"new", b"twice", 10)
    rig.volume.sync()
    rig.write(b"new", b"three times", 10)
    rig.truncate(b"new", 10)
    rig.save(b"src/util", b"saved")
    rig.volume.sync()
    rig.unlink(b"new")
    handle = rig.open(b"fresh")
    rig.unlink(b"fresh")
    handle.write(0, b"without a name")
    rig.volume.sync()
    rig.checkpoint()
    rig.remove_tree(b"docs")
    rig.restore(START)
    rig.undo()
    rig.crash()
    rig.start()
    rig.finish(check=False)
    assert sample.verify().problems == []
    with sample.open(recount=False) as hands:
        assert any(key.startswith(b"sums\0extent\0") for key, _ in hands.rows("meta"))
