"""What a collection leaves alone, and what it takes out."""

from __future__ import annotations

import contextlib
import random
from typing import Any

import pytest

from cowfs.errors import DamagedRecordError, NothingToUndoError
from cowfs.format import codec
from cowfs.service import collecting
from cowfs.service.apply import apply
from cowfs.service.collecting import versions
from cowfs.types import BLOCK_SIZE
from cowfs.volume import namespace
from tests.collecting.looking import (
    BeforeTheSweep,
    check_nothing_left,
    check_verified,
    collect_garbage,
    forget,
    look,
    stored_bytes,
)
from tests.support.volumes import AUTHOR, Rig


@pytest.fixture
def rig(volume: Rig) -> Rig:
    return volume


DATA = random.Random(1).randbytes(2 * BLOCK_SIZE)


def head(rig: Rig) -> int:
    return rig.volume.branch.head


def test_what_only_a_removed_checkpoint_showed_is_freed(rig: Rig) -> None:
    rig.create(b"f", DATA)
    first = rig.checkpoint()
    rig.unlink(b"f")
    second = rig.checkpoint()
    assert stored_bytes(rig) > len(DATA)
    forget(rig, [first.id])
    done = collect_garbage(rig)
    assert (done.complete, done.blocks) == (True, 2)
    assert done.bytes >= len(DATA)
    assert stored_bytes(rig) == 0
    check_nothing_left(rig, [second.epoch])
    check_verified(rig)


def test_nothing_goes_while_nothing_was_removed(rig: Rig) -> None:
    rig.create(b"f", DATA)
    for _ in range(3):
        rig.write(b"f", b"x", 5)
        rig.checkpoint()
    before = rig.record_counts()
    done = collect_garbage(rig)
    assert (done.versions, done.blocks) == (0, 0)
    assert rig.record_counts() == before


def test_a_file_that_is_open_without_a_name(rig: Rig) -> None:
    """Its content is nobody's, and it is read all the same (unlink(2)); closed, it goes."""
    rig.create(b"f", DATA)
    first = rig.checkpoint()
    handle = rig.open(b"f")
    rig.unlink(b"f")
    second = rig.checkpoint()
    rig.checkpoint()
    forget(rig, [first.id, second.id])
    done = collect_garbage(rig)
    assert done.left
    rig.volume._blocks.clear()
    assert handle.read() == DATA
    handle.close()
    rig.volume.sync()
    assert not collect_garbage(rig).left
    assert stored_bytes(rig) == 0


def test_a_file_that_lost_its_name_in_the_epoch_that_made_it(rig: Rig) -> None:
    """No state ever showed it: nothing but the open file knows its data, and it goes with that."""
    rig.create(b"f", DATA)
    handle = rig.open(b"f")
    rig.unlink(b"f")
    kept = [rig.checkpoint().epoch]
    assert collect_garbage(rig).complete
    check_nothing_left(rig, kept, [handle])
    rig.volume._blocks.clear()
    assert handle.read() == DATA
    handle.close()
    rig.volume.sync()
    assert collect_garbage(rig).complete
    check_nothing_left(rig, kept)
    assert stored_bytes(rig) == 0


def test_a_file_that_a_restore_left_to_its_handles(rig: Rig) -> None:
    """The rescue checkpoint of the state that has it is removed while it is open."""
    start = rig.checkpoint()
    rig.create(b"f", DATA)
    rig.checkpoint()
    handle = rig.open(b"f")
    rescue = rig.restore(start).rescue
    everything = [
        key.decode() for key in rig.volume.reader.keys("checkpoint") if key.decode() != start.id
    ]
    assert rescue.id in everything
    rig.checkpoint()
    forget(rig, [name for name in everything if name != "0123456789ab"])
    collect_garbage(rig)
    rig.volume._blocks.clear()
    assert handle.read() == DATA
    handle.close()


def test_a_file_that_got_its_first_name_after_a_checkpoint(rig: Rig) -> None:
    """What it has of epochs that do not know it stays as long as it is shown or open."""
    handle = rig.open_unnamed()
    handle.write(0, DATA)
    before = rig.checkpoint()
    handle.write(BLOCK_SIZE, b"second")
    middle = rig.checkpoint()
    forget(rig, [before.id])
    collect_garbage(rig)
    expected = DATA[:BLOCK_SIZE] + b"second" + DATA[BLOCK_SIZE + 6 :]
    assert handle.read() == expected
    namespace.link(rig.view, handle.inode.ino, *rig.place(b"f"))
    handle.close()
    last = rig.checkpoint()
    forget(rig, [middle.id])
    collect_garbage(rig)
    rig.reopen()
    assert rig.read(b"f") == expected
    check_verified(rig)
    rig.unlink(b"f")
    final = rig.checkpoint()
    forget(rig, [last.id])
    collect_garbage(rig)
    assert stored_bytes(rig) == 0
    check_nothing_left(rig, [final.epoch])
    check_verified(rig)


def test_a_path_that_was_restored_into_the_open_epoch(rig: Rig) -> None:
    """The head shows old extents that the state before it does not need."""
    rig.create(b"f", DATA)
    first = rig.checkpoint()
    rig.unlink(b"f")
    rig.checkpoint()
    rescue = rig.restore_paths(first, [b"f"]).rescue
    before = look(rig, head(rig))
    forget(rig, [first.id, rescue.id])
    collect_garbage(rig)
    rig.volume._blocks.clear()
    assert look(rig, head(rig)) == before
    assert rig.read(b"f") == DATA


def test_a_reference_stays_while_a_delta_needs_it(rig: Rig) -> None:
    rig.create(b"f", DATA[:BLOCK_SIZE])
    first = rig.checkpoint()
    rig.write(b"f", b"x" * 700, 30000)
    second = rig.checkpoint()
    rig.unlink(b"f")
    rig.checkpoint()
    kinds = [codec.delta_reference(value) is None for _, value in rig.volume.reader.scan("block")]
    assert sorted(kinds) == [False, True]
    forget(rig, [first.id])
    assert collect_garbage(rig).blocks == 0
    check_verified(rig)
    forget(rig, [second.id])
    assert collect_garbage(rig).blocks == 2


def test_the_newest_checkpoint_can_be_removed(rig: Rig) -> None:
    """The present state does not change, and what it hides goes with the next checkpoint."""
    rig.create(b"f", DATA)
    rig.checkpoint()
    rig.write(b"f", b"new", 0)
    newest = rig.checkpoint()
    rig.write(b"f", b"newer", 0)
    rig.volume.sync()
    before = rig.tree()
    forget(rig, [newest.id])
    collect_garbage(rig)
    assert rig.tree() == before
    check_verified(rig)
    rig.checkpoint()
    assert collect_garbage(rig).versions > 0


def test_the_state_of_the_base_stays(rig: Rig) -> None:
    """What an apply wrote is what the next one compares with, whatever was removed since."""
    rig.create(b"f", DATA)
    rig.checkpoint()
    apply(rig.engine, AUTHOR, lambda **_: None)
    rig.write(b"f", b"changed", 0)
    rig.checkpoint()
    rig.write(b"f", b"changed again", 0)
    rig.checkpoint()
    applied = rig.volume.branch.applied
    before = look(rig, applied)
    ids = [key.decode() for key in rig.volume.reader.keys("checkpoint")]
    forget(rig, [name for name in ids if name != "0123456789ab"])
    collect_garbage(rig)
    assert look(rig, applied) == before
    check_verified(rig)
    assert not apply(rig.engine, AUTHOR, lambda **_: None).problems
    assert rig.base is not None
    assert (rig.base / "f").read_bytes().startswith(b"changed again")


def test_a_block_that_is_written_again_while_blocks_are_swept(rig: Rig) -> None:
    """Deduplicated against one that nobody needed when the sweep began."""
    rig.create(b"f", DATA)
    first = rig.checkpoint()
    rig.unlink(b"f")
    rig.checkpoint()
    forget(rig, [first.id])

    def write_the_same() -> None:
        rig.create(b"g", DATA)
        rig.volume.sync()

    pace = BeforeTheSweep(rig, write_the_same)
    collecting.collect(rig.engine, contextlib.nullcontext(), pace, lambda **_: None)
    rig.volume._blocks.clear()
    assert rig.exists(b"g")
    assert rig.read(b"g") == DATA
    check_verified(rig)


@pytest.mark.parametrize("seed", range(4))
def test_history_goes_on_meanwhile(rig: Rig, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Checkpoints are made, removed and restored between the steps of one collection."""
    monkeypatch.setattr(versions, "_LOOKED_AT", 6)
    monkeypatch.setattr(versions, "_TAKEN", 3)
    monkeypatch.setattr(versions, "_NAMED", 3)
    rng = random.Random(seed)
    shown = {}

    def edit(number: int) -> None:
        rig.save(b"f", b"%d" % number * 30_000)
        if rig.exists(b"n%d" % (number - 2)):
            rig.unlink(b"n%d" % (number - 2))
        if not rig.exists(b"n%d" % number):
            rig.create(b"n%d" % number, b"%d" % number * 1000)
        record = rig.checkpoint()
        shown[record.id] = record.epoch, look(rig, record.epoch)

    for number in range(12):
        edit(number)
    for name in list(shown)[:9]:
        forget(rig, [name])
        del shown[name]

    class Meanwhile(collecting.Pace):
        steps = 0

        def go_on(self) -> bool:
            self.steps += 1
            if self.steps % 3 == 0 and self.steps < 60:
                edit(20 + self.steps)
            if self.steps % 7 == 0 and self.steps < 60:
                rescue = rig.restore(rng.choice(list(shown))).rescue
                shown[rescue.id] = rescue.epoch, look(rig, rescue.epoch)
            if self.steps % 5 == 0 and self.steps < 60:
                name = rng.choice(list(shown)[:-1])
                forget(rig, [name])
                del shown[name]
            return True

    pace = Meanwhile()
    nothing = contextlib.nullcontext()
    assert collecting.collect(rig.engine, nothing, pace, lambda **_: None, thorough=True).complete
    assert pace.steps > 60
    for epoch, state in shown.values():
        assert look(rig, epoch) == state
    check_verified(rig)
    check_nothing_left(rig, [epoch for epoch, _ in shown.values()])


def test_damage_stops_it(rig: Rig) -> None:
    """Who cannot read what is kept takes nothing out."""
    rig.check = False
    rig.create(b"f", DATA)
    first, second = rig.checkpoint(), rig.checkpoint()
    forget(rig, [first.id])
    store = rig.volume.store
    db: Any = store.tables["checkpoint"].handle
    with store.env.begin(write=True) as txn:
        value = bytearray(txn.get(second.id.encode(), db=db) or b"")
        value[3] ^= 1
        txn.put(second.id.encode(), bytes(value), db=db)
    counts = rig.record_counts()
    with pytest.raises(DamagedRecordError):
        collect_garbage(rig)
    assert rig.record_counts() == counts


def test_undo_after_its_checkpoint_was_removed(rig: Rig) -> None:
    first = rig.checkpoint()
    rig.create(b"f", b"1")
    rescue = rig.restore(first).rescue
    forget(rig, [rescue.id])
    assert rig.volume.branch.undo == ()
    with pytest.raises(NothingToUndoError):
        rig.undo()
    rig.reopen()
    assert rig.volume.branch.undo == ()
