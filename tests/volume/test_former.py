"""What a new file is stored as when another one lost its name: a delta against that."""

from __future__ import annotations

import random

import pytest

from cowfs.format import codec
from cowfs.volume import view
from tests.support.volumes import Rig

TEXT = b"".join(b"line %d: %d\n" % (n, random.Random(n).randrange(10**9)) for n in range(500))
EDITED = TEXT.replace(b"line 250", b"one line").replace(b"line 9:", b"line nine:")


def references(rig: Rig) -> dict[bytes, bytes | None]:
    """Hash of each stored block, and of the one that it is stored against."""
    rig.volume.sync()
    return {key: codec.delta_reference(value) for key, value in rig.volume.reader.scan("block")}


def has_delta(rig: Rig) -> bool:
    return references(rig)[codec.block_hash(EDITED)] == codec.block_hash(TEXT)


def test_removed_and_made_again(volume: Rig) -> None:
    volume.create(b"f", TEXT)
    volume.checkpoint()
    volume.unlink(b"f")
    volume.create(b"f", EDITED)
    assert has_delta(volume)


def test_renamed_away_and_made_again(volume: Rig) -> None:
    volume.create(b"f", TEXT)
    volume.checkpoint()
    volume.rename(b"f", b"f~")
    volume.create(b"f", EDITED)
    assert has_delta(volume)


def test_a_whole_directory_made_again(volume: Rig) -> None:
    volume.mkdir(b"d")
    volume.create(b"d/f", TEXT)
    volume.create(b"other", b"f" * 3000)
    volume.checkpoint()
    volume.unlink(b"d/f")
    volume.rmdir(b"d")
    volume.rename(b"other", b"f")
    volume.unlink(b"f")  # the last one of that name anywhere, but not in that directory
    volume.mkdir(b"d")
    volume.create(b"d/f", EDITED)
    assert has_delta(volume)


def test_made_again_in_another_directory(volume: Rig) -> None:
    volume.mkdir(b"old")
    volume.create(b"old/f", TEXT)
    volume.checkpoint()
    volume.unlink(b"old/f")
    volume.rmdir(b"old")
    volume.mkdir(b"new")
    volume.create(b"new/f", EDITED)
    assert has_delta(volume)


def test_of_the_same_epoch_nothing_remains_to_refer_to(volume: Rig) -> None:
    volume.create(b"f", TEXT)
    volume.unlink(b"f")
    volume.create(b"f", EDITED)
    assert references(volume) == {codec.block_hash(EDITED): None}


def test_what_is_remembered_is_bounded(volume: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(view, "_FORMER", 4)
    for number in range(10):
        volume.create(b"f%d" % number, TEXT[number:])
        volume.unlink(b"f%d" % number)
    assert len(volume.view.former) == 4
