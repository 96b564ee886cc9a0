"""Collecting garbage of a compacted store: a segment stays while any block in it is needed."""

from __future__ import annotations

import contextlib
import random

import pytest

from cowfs.format import codec
from cowfs.format.segment import is_segment, part_of
from cowfs.service import collecting
from cowfs.store import packing
from cowfs.store.compaction import compact
from cowfs.store.rewriting import silent
from tests.collecting.looking import (
    BeforeTheSweep,
    check_nothing_left,
    check_verified,
    collect_garbage,
    forget,
    look,
)
from tests.support.volumes import Rig


def text(number: int) -> bytes:
    words = random.Random(number)
    return b"".join(b"word%d " % words.randrange(3000) for _ in range(3000))


def changed(number: int) -> bytes:
    return text(number).replace(b"word7", b"other")


def compacted(rig: Rig) -> None:
    """Another life of a rig, with a store that was compacted between the two."""
    rig.close()
    done = compact(rig.store, silent)
    assert done.after < done.before
    rig.start()


def blocks(rig: Rig) -> dict[bytes, bytes]:
    rig.volume.look_again()
    return dict(rig.volume.reader.scan("block"))


def parts(rig: Rig) -> set[bytes]:
    return {digest for digest, value in blocks(rig).items() if part_of(value)}


def segments(rig: Rig) -> int:
    return sum(is_segment(value) for value in blocks(rig).values())


@pytest.fixture
def rig(volume: Rig) -> Rig:
    """Two checkpoints and a present state, each with other versions of five files, compacted."""
    for number in range(5):
        volume.create(b"f%d" % number, text(number))
    volume.checkpoint("first", label="first")
    for number in range(5):
        volume.save(b"f%d" % number, changed(number))
    volume.checkpoint("second", label="second")
    for number in range(5):
        volume.save(b"f%d" % number, changed(number) + b"the end")
    volume.volume.sync()
    compacted(volume)
    assert (segments(volume), len(parts(volume))) == (1, 15)
    return volume


def labelled(rig: Rig, label: bytes) -> str:
    found = rig.volume.reader.get("label", label)
    assert found is not None
    return found.decode()


def test_a_segment_goes_with_the_last_block_in_it(rig: Rig) -> None:
    first, second = labelled(rig, b"first"), labelled(rig, b"second")
    kept = [rig.volume.branch.head]
    before = look(rig, kept[0])
    forget(rig, [first])
    assert collect_garbage(rig).blocks == 5
    assert (segments(rig), len(parts(rig))) == (1, 10)
    assert look(rig, kept[0]) == before
    check_verified(rig)
    for number in range(5):
        rig.unlink(b"f%d" % number)
    third, fourth = rig.checkpoint(), rig.checkpoint()
    forget(rig, [second, third.id])
    assert collect_garbage(rig).blocks == 11
    assert blocks(rig) == {}
    check_nothing_left(rig, [fourth.epoch])
    check_verified(rig)


@pytest.fixture
def as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """No segment is made anew, however little is left of it."""
    monkeypatch.setattr(collecting, "remains", lambda _: iter(()))


@pytest.mark.usefixtures("as_they_are")
def test_a_delta_keeps_the_part_and_that_the_segment(rig: Rig) -> None:
    newest = rig.read(b"f1")
    rig.save(b"f1", newest[:5000] + b"!" + newest[5000:])
    last = rig.checkpoint()
    found = blocks(rig)
    (delta,) = [v for v in found.values() if codec.delta_reference(v) and not part_of(v)]
    assert part_of(found[codec.delta_reference(delta) or b""])
    for number in (0, 2, 3, 4):
        rig.unlink(b"f%d" % number)
    rig.checkpoint()
    forget(rig, [labelled(rig, b"first"), labelled(rig, b"second"), last.id])
    collect_garbage(rig)
    assert parts(rig) == {codec.delta_reference(delta)}
    assert segments(rig) == 1
    rig.volume._blocks.clear()
    assert rig.read(b"f1") == newest[:5000] + b"!" + newest[5000:]
    check_verified(rig)


@pytest.mark.usefixtures("as_they_are")
@pytest.mark.parametrize("edit", [b"", b"!"])
def test_a_part_that_is_written_again_while_blocks_are_swept(rig: Rig, edit: bytes) -> None:
    """Itself, or a delta to it: with the part its segment stays."""
    old = text(0)
    for number in range(5):
        rig.unlink(b"f%d" % number)
    rig.checkpoint()
    forget(rig, [labelled(rig, b"first"), labelled(rig, b"second")])

    def write_the_same() -> None:
        rig.create(b"again", old)
        rig.volume.sync()
        rig.write(b"again", edit, 4000)
        rig.checkpoint()

    pace = BeforeTheSweep(rig, write_the_same)
    collecting.collect(rig.engine, contextlib.nullcontext(), pace, lambda **_: None)
    assert rig.exists(b"again")
    assert (segments(rig), len(parts(rig))) == (1, 1)
    rig.volume._blocks.clear()
    assert rig.read(b"again") == old[:4000] + edit + old[4000 + len(edit) :]
    check_verified(rig)


def test_a_segment_of_which_little_is_left_is_made_anew(
    volume: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is removed to make room makes room, also after a compaction."""
    monkeypatch.setattr(packing, "SMALL", 1 << 20)
    noise = random.Random(1).randbytes
    for number in range(10):
        volume.create(b"f%d" % number, noise(50_000))
    first = volume.checkpoint()
    for number in range(6):
        volume.unlink(b"f%d" % number)
    last = volume.checkpoint()
    volume.checkpoint()
    compacted(volume)
    before = look(volume, last.epoch)
    ((segment, _),) = [row for row in blocks(volume).items() if is_segment(row[1])]
    forget(volume, [first.id])
    done = collect_garbage(volume)
    assert (done.blocks, done.complete) == (6, True)
    assert 290_000 < done.bytes < 310_000
    found = blocks(volume)
    assert segment not in found
    assert (segments(volume), len(parts(volume))) == (1, 4)
    assert sum(map(len, found.values())) < 210_000
    volume.volume._blocks.clear()
    assert look(volume, last.epoch) == before
    check_nothing_left(volume, [last.epoch])
    check_verified(volume)
    for number in range(7, 10):
        volume.unlink(b"f%d" % number)
    volume.checkpoint()
    volume.checkpoint()
    forget(volume, [key.decode() for key in volume.volume.reader.keys("checkpoint")][1:])
    collect_garbage(volume)
    assert (segments(volume), len(parts(volume))) == (0, 0)
    assert volume.read(b"f6") == before[b"f6"].content
    check_verified(volume)
