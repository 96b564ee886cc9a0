"""What is worth knowing and harms nothing: notes, and how much is listed."""

from __future__ import annotations

import os
from pathlib import Path

from cowfs.format import codec, keys, records
from tests.support.volumes import Rig
from tests.verify.sample import Sample, build, noise


def checks(sample: Sample) -> set[str]:
    """The notes of a store that has no problems."""
    report = sample.verify()
    assert report.problems == []
    assert all(note.severity == "note" for note in report.notes)
    return {note.check for note in report.notes}


def test_a_block_that_nothing_needs(sample: Sample) -> None:
    with sample.open() as hands:
        hands.put("block", codec.block_hash(b"nobody's"), codec.encode_block(b"nobody's"))
    assert checks(sample) == {"unreferenced-blocks"}
    (note,) = sample.verify().notes
    assert note.detail.startswith("1 blocks (13 bytes)")


def test_a_block_that_only_a_delta_needs_is_needed(sample: Sample) -> None:
    with sample.open() as hands:
        _, _, reference = hands.delta()
        key, _ = hands.extent("src/main", 0, 1)
        other = noise(7, 65536)
        hands.put("block", codec.block_hash(other), codec.encode_block(other))
        hands.put("extent", key, codec.block_hash(other))
        assert all(value != reference for _, value in hands.rows("extent"))
    assert checks(sample) == set()


def test_extents_of_a_content_that_no_inode_has(sample: Sample) -> None:
    with sample.open() as hands:
        _, digest = hands.extent("fresh", 0, 4)
        content = keys.unpack_id(hands.get("meta", b"next_id"))
        hands.put("meta", b"next_id", keys.pack_id(content + 1))
        hands.put("extent", keys.extent_key(content, 0, 4), digest)
    assert checks(sample) == {"leftover"}


def test_extents_of_a_file_that_was_open_without_a_name(sample: Sample) -> None:
    with sample.open() as hands:
        _, digest = hands.extent("fresh", 0, 4)
        orphan = keys.unpack_id(hands.get("meta", b"next_id"))
        hands.put("meta", b"next_id", keys.pack_id(orphan + 1))
        hands.put("extent", keys.extent_key(orphan, 0, 4), digest)
        hands.put("orphan", keys.pack_id(orphan), keys.extent_prefix(orphan, 4))
    assert checks(sample) == set()


def test_attributes_of_an_inode_that_no_state_has(sample: Sample) -> None:
    with sample.open() as hands:
        ino = keys.unpack_id(hands.get("meta", b"next_id"))
        hands.put("meta", b"next_id", keys.pack_id(ino + 1))
        hands.put("xattr", keys.xattr_key(ino, b"user.a", 4), b"\1value")
    assert checks(sample) == {"leftover"}


def test_a_base_file_that_changed_outside(tmp_path: Path) -> None:
    sample = build(tmp_path)
    with open(sample.base / "docs" / "readme", "ab") as file:
        file.write(b"more")
    assert checks(sample) == {"content-lost"}
    (note,) = sample.verify().notes
    assert "not noticed yet" in note.detail
    assert note.paths == ("docs/readme",)
    assert [sample.names[c] for c in note.checkpoints] == ["start", "one", "two", "lost", "now"]


def test_a_base_file_that_is_gone(tmp_path: Path) -> None:
    sample = build(tmp_path)
    os.unlink(sample.base / "docs" / "old")
    (note,) = sample.verify().notes
    assert note.check == "content-lost"
    assert "No such file or directory" in note.detail
    assert set(note.paths) == {"docs/old", "src/old"}


def test_content_that_was_lost_is_named_with_the_states_that_need_it(sample: Sample) -> None:
    with sample.open() as hands:
        content = hands.inos["docs/readme"]
        place = records.pack_origin(records.ORIGIN_LOST, hands.inos["docs"], b"readme")
        hands.put("origin", keys.pack_id(content), place)
    (note,) = sample.verify().notes
    assert (note.check, note.paths) == ("content-lost", ("docs/readme",))
    assert len(note.checkpoints) == 5


def test_content_that_was_sealed_needs_no_base(tmp_path: Path) -> None:
    sample = build(tmp_path)
    rig = Rig(sample.store, sample.base)
    from cowfs.volume import sealing

    for path in (b"docs/readme", b"docs/old"):
        if rig.exists(path):
            sealing.seal(rig.view, rig.at(path).content)
    rig.finish()
    os.unlink(sample.base / "docs" / "readme")
    os.unlink(sample.base / "docs" / "old")
    assert checks(sample) == set()


def test_many_problems_of_one_kind_are_counted_but_not_all_listed(sample: Sample) -> None:
    with sample.open() as hands:
        for number in range(1500):
            hands.put("label", b"nowhere%d" % number, b"0" * 12)
    report = sample.verify()
    assert len(report.problems) == 1000
    assert report.count == 1500
    assert report.omitted == {"label": 500}
