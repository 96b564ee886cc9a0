"""`verify --repair`: what it restores, rebuilds, marks, leaves and refuses. Always on a copy."""

from __future__ import annotations

import errno
import os
import random
from pathlib import Path

import pytest

from cowfs.errors import RepairRefusedError, StoreLockedError
from cowfs.format import codec, keys, records
from cowfs.service.repair import Repaired, repair
from cowfs.store.env import TABLES, lock_owner
from tests.support.volumes import Rig, errno_of
from tests.verify.sample import Sample, build, noise
from tests.verify.test_checks import CASES, flip
from tests.verify.test_robust import damage

Rows = dict[str, dict[bytes, bytes]]

SAME = [
    "dirent_value_too_long",
    "link_value_too_long",
    "change_of_no_known_kind",
    "base_value_too_short",
    "operation_that_does_not_decode",
    "hardlink_key_too_short",
    "orphan_value_too_short",
    "change_of_no_epoch",
    "name_with_another_type",
    "name_that_the_inode_does_not_know",
    "name_that_the_directory_does_not_know",
    "link_with_another_type",
    "file_with_a_wrong_nlink",
    "directory_with_a_wrong_nlink",
    "inode_with_unknown_flags",
    "change_record_of_an_inode_missing",
    "change_record_of_a_name_missing",
    "change_record_of_nothing",
    "change_record_of_no_name",
    "epoch_without_a_parent",
    "epoch_older_than_its_parent",
    "epoch_of_another_run",
    "second_open_epoch",
    "sealed_head",
    "epoch_without_a_time",
    "epoch_sealed_by_no_checkpoint",
    "epoch_sealed_by_the_checkpoint_of_another",
    "checkpoint_of_no_epoch",
    "checkpoint_of_the_open_epoch",
    "label_of_no_checkpoint",
    "label_of_a_checkpoint_with_another",
    "label_that_is_missing",
    "branch_that_would_redo_to_nowhere",
    "branch_that_applied_no_epoch",
    "branch_with_another_name",
    "apply_of_no_epoch",
    "garbage_of_no_epoch",
    "garbage_of_an_epoch_with_a_checkpoint",
    "copy_that_does_not_decode",
    "copy_in_no_known_state",
    "copy_to_another_directory",
    "copy_of_what_is_not_its_own",
    "copy_without_a_session",
    "next_id_that_is_in_use",
    "next_epoch_that_is_in_use",
    "next_id_that_is_missing",
    "base_entry_of_another_type",
    "origin_in_a_directory_that_is_not_from_there",
    "imported_content_that_lies_nowhere",
    "unlisted_directory_with_entries",
    "hardlink_to_a_directory",
    "orphan_with_the_content_of_another_inode",
    "orphan_of_no_epoch",
    "session_that_ended_and_did_not",
    "session_that_goes_on_with_no_transcript",
    "transcript_of_no_known_kind",
    "transcript_shorter_than_its_pieces",
    "transcript_with_another_end",
    "context_of_another_session_than_its_checkpoint",
    "mark_with_another_hash",
]
"""Damage after which a repair brings back the very same store."""

NOT = [
    "extent_beyond_the_end_of_the_file",
    "block_longer_than_the_file",
    "name_of_an_inode_that_is_not_there",
    "inode_removed_under_its_name",
    "removed_name_that_the_inode_still_knows",
    "inode_without_a_name",
    "directory_with_two_names",
    "directory_below_itself",
    "root_with_a_name",
    "entry_in_a_file",
    "inode_that_becomes_something_else",
    "file_with_a_target",
    "two_inodes_with_one_content",
    "operation_of_a_later_epoch",
    "base_entry_of_a_directory_that_is_not_from_there",
]
"""Damage of which nothing says what was right; it stays reported, and nothing is written."""


def mend(sample: Sample, *, dry_run: bool = False, with_base: bool = True) -> Repaired:
    fd = os.open(sample.base, os.O_RDONLY | os.O_DIRECTORY)
    try:
        return repair(
            sample.store,
            fd if with_base else None,
            dry_run=dry_run,
            progress=lambda phase, done, total: None,
        )
    finally:
        os.close(fd)


def rows(sample: Sample) -> Rows:
    with sample.open() as hands:
        return {table: dict(hands.rows(table)) for table in TABLES}


def readable(sample: Sample) -> dict[bytes, object]:
    """What the head shows of every path that can be read."""
    rig = Rig(sample.store, sample.base)
    try:
        return dict(rig.tree())
    finally:
        rig.finish(check=False)


@pytest.mark.parametrize("name", CASES)
def test_what_becomes_of_each_damage(sound_sample: Sample, sample: Sample, name: str) -> None:
    with sample.open() as hands:
        CASES[name].damage(hands)
    damaged = rows(sample)
    plan = mend(sample, dry_run=True)
    assert rows(sample) == damaged  # a plan changes nothing
    done = mend(sample)
    assert done.actions == plan.actions
    assert done.before.count == plan.before.count >= 1
    report = sample.verify()
    assert report.count == done.after.count
    if name in NOT:
        assert done.actions == []
        assert rows(sample) == damaged
        return
    assert report.problems == []
    if name in SAME:
        assert rows(sample) == rows(sound_sample)
        assert all(action.how != "marked" for action in done.actions)
    assert mend(sample).actions == []  # once is enough


def test_a_sound_store_needs_nothing(sample: Sample) -> None:
    before = (sample.store / "data.mdb").read_bytes()
    done = mend(sample)
    assert (done.actions, done.before.count, done.after.count) == ([], 0, 0)
    assert (sample.store / "data.mdb").read_bytes() == before


# -- blocks ----------------------------------------------------------------------------------


@pytest.fixture
def copied(tmp_path: Path) -> Sample:
    """A sample whose base has a copy of src/main as it was in `one`, under another name, and of
    fresh in the middle of another file."""
    sample = build(tmp_path)
    (sample.base / "empty" / "copy").write_bytes(noise(2, 100_000))
    (sample.base / "empty" / "more").write_bytes(noise(4, 1000) + bytes(5000))
    return sample


def hash_of(sample: Sample, path: str, number: int, epoch: int) -> bytes:
    with sample.open() as hands:
        return hands.extent(path, number, epoch)[1]


@pytest.mark.parametrize("way", ["flip", "zero", "cut", "other", "gone"])
@pytest.mark.parametrize(("path", "number", "epoch"), [("src/main", 1, 1), ("fresh", 0, 4)])
def test_a_block_that_the_base_has(
    copied: Sample, way: str, path: str, number: int, epoch: int
) -> None:
    sound = rows(copied)
    digest = hash_of(copied, path, number, epoch)
    value = sound["block"][digest]
    with copied.open() as hands:
        if way == "gone":
            hands.drop("block", digest)
        else:
            other = codec.encode_block(b"another block")
            cut = {"flip": flip(value, len(value) - 1), "zero": bytes(len(value))}
            hands.put("block", digest, {**cut, "cut": value[:300], "other": other}[way])
    done = mend(copied)
    (action,) = done.actions
    assert (action.how, action.thing) == ("restored", digest.hex())
    assert "of the base directory" in action.detail
    assert rows(copied) == sound


def test_a_reference_brings_its_deltas_back(copied: Sample) -> None:
    sound = rows(copied)
    with copied.open() as hands:
        _, _, reference = hands.delta()
        hands.put("block", reference, b"\0\0\0\0\1x")
    assert {action.how for action in mend(copied).actions} == {"restored"}
    assert rows(copied) == sound


@pytest.mark.parametrize("at", range(codec.HEADER_SIZE))
def test_a_block_whose_header_is_damaged(sample: Sample, at: int) -> None:
    sound = rows(sample)
    digest = hash_of(sample, "fresh", 0, 4)
    with sample.open() as hands:
        hands.put("block", digest, flip(sound["block"][digest], at))
    assert {action.how for action in mend(sample).actions} == {"restored"}
    assert rows(sample) == sound


@pytest.mark.parametrize("at", range(codec.HEADER_SIZE, codec.HEADER_SIZE + codec.HASH_SIZE))
def test_a_delta_that_names_another_reference(sample: Sample, at: int) -> None:
    with sample.open() as hands:
        digest, value, _ = hands.delta()
        hands.put("block", digest, flip(value, at))
    assert {action.how for action in mend(sample).actions} == {"restored"}
    assert sample.verify().problems == sample.verify().notes == []


def test_a_block_under_a_wrong_key(sample: Sample) -> None:
    sound = rows(sample)
    digest = hash_of(sample, "fresh", 0, 4)
    with sample.open() as hands:
        hands.put("block", flip(digest, 3), sound["block"][digest])
        hands.drop("block", digest)
    mend(sample)
    assert rows(sample) == sound


def test_two_blocks_in_each_others_place(sample: Sample) -> None:
    sound = rows(sample)
    one, other = hash_of(sample, "fresh", 0, 4), hash_of(sample, "src/main", 1, 1)
    with sample.open() as hands:
        hands.put("block", one, sound["block"][other])
        hands.put("block", other, sound["block"][one])
    mend(sample)
    assert rows(sample) == sound


def lose(sample: Sample) -> bytes:
    """Damage the only block of fresh, and repair; its hash."""
    digest = hash_of(sample, "fresh", 0, 4)
    with sample.open() as hands:
        hands.put("block", digest, flip(hands.get("block", digest), 500))
    (action,) = mend(sample).actions
    assert (action.how, action.thing, action.paths) == ("marked", digest.hex(), ("fresh",))
    return digest


def test_a_lost_block_is_noted_and_stays_an_error(sample: Sample) -> None:
    lose(sample)
    report = sample.verify()
    assert report.problems == []
    (note,) = report.notes
    assert (note.check, note.paths) == ("block-lost", ("fresh",))
    assert [sample.names[c] for c in note.checkpoints] == ["now"]
    rig = Rig(sample.store, sample.base)
    try:
        assert errno_of(rig.read, b"fresh") == errno.EIO
        assert rig.read(b"src/main") == noise(2, 100_000)
        assert rig.problems() == [("damaged", "fresh")]
    finally:
        rig.finish(check=False)


def test_a_lost_block_comes_back_when_it_is_written_again(sample: Sample) -> None:
    lose(sample)
    rig = Rig(sample.store, sample.base)
    rig.create(b"again", noise(4, 1000))
    rig.volume.sync()
    assert rig.read(b"fresh") == noise(4, 1000)
    rig.finish(check=False)
    report = sample.verify()
    assert report.problems == report.notes == []


def test_a_lost_block_comes_back_when_the_base_has_it_again(sample: Sample, tmp_path: Path) -> None:
    digest = lose(sample)
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "found").write_bytes(noise(4, 1000))
    fd = os.open(tmp_path / "base", os.O_RDONLY)
    done = repair(sample.store, fd, dry_run=False, progress=lambda *_: None)
    os.close(fd)
    assert ("restored", digest.hex()) in [(a.how, a.thing) for a in done.actions]
    assert [n for n in sample.verify().notes if n.check == "block-lost"] == []


def test_a_lost_inode_is_noted_and_stays_an_error(sample: Sample) -> None:
    with sample.open() as hands:
        hands.put("inode", keys.inode_key(sample.inos["fresh"], 4), b"garbage")
    (action,) = mend(sample).actions
    assert (action.how, action.table, action.paths) == ("marked", "inode", ("fresh",))
    (note,) = sample.verify().notes
    assert (note.check, note.paths) == ("record-lost", ("fresh",))
    rig = Rig(sample.store, sample.base)
    try:
        assert errno_of(rig.read, b"fresh") == errno.EIO
        assert rig.read(b"src/main") == noise(2, 100_000)
    finally:
        rig.finish(check=False)


def test_a_name_whose_inode_is_gone(sample: Sample) -> None:
    """The other half of the name and a change record tell that there was one."""
    with sample.open() as hands:
        hands.drop("inode", keys.inode_key(sample.inos["fresh"], 4))
    assert "dirent-inode" in {problem.check for problem in sample.verify().problems}
    mend(sample)
    report = sample.verify()
    assert report.problems == []
    assert ("record-lost", ("fresh",)) in {(note.check, note.paths) for note in report.notes}
    rig = Rig(sample.store, sample.base)
    try:
        assert errno_of(rig.read, b"fresh") == errno.EIO
        rig.unlink(b"fresh")
        rig.volume.sync()
    finally:
        rig.finish(check=False)
    assert sample.verify().problems == []


def test_the_inode_of_a_directory(sample: Sample) -> None:
    """It is made anew, like the directory above, so that what is in it is not lost with it."""
    was = readable(sample)
    with sample.open() as hands:
        for path in ("src", "src/deep"):
            hands.put("inode", keys.inode_key(sample.inos[path], 1), b"garbage")
    done = mend(sample)
    assert {action.how for action in done.actions} == {"rebuilt"}
    assert sample.verify().problems == []
    found = readable(sample)
    assert found.keys() == was.keys()
    for name in was.keys() - {b"src", b"src/deep"}:
        assert found[name] == was[name]


@pytest.mark.parametrize("with_base", [True, False])
def test_the_inode_of_the_root(sample: Sample, with_base: bool) -> None:
    was = readable(sample)
    with sample.open() as hands:
        for key, _ in hands.rows("inode", keys.pack_id(1)):
            hands.store("inode", key, b"garbage")
    mend(sample, with_base=with_base)
    assert sample.verify().problems == []
    assert readable(sample).keys() == was.keys()


# -- whole records ----------------------------------------------------------------------------


@pytest.mark.parametrize("table", ["link", "label", "change", "hardlink"])
def test_a_derived_table_that_is_empty(sound_sample: Sample, sample: Sample, table: str) -> None:
    with sample.open() as hands:
        for key, _ in hands.rows(table):
            hands.drop(table, key)
    mend(sample)
    assert sample.verify().problems == []
    if table != "hardlink":  # which only saves work
        assert rows(sample) == rows(sound_sample)


@pytest.mark.parametrize("table", ["epoch", "operation", "checkpoint"])
def test_every_record_of_history_that_two_others_tell_of(
    sound_sample: Sample, sample: Sample, table: str
) -> None:
    """The first record of each is told only by itself in part: messages are, and which restore."""
    for key, value in rows(sound_sample)[table].items():
        copy = sample.copy(sample.store.with_name(f"{table}-{key.hex()}"))
        with copy.open() as hands:
            hands.drop(table, key)
        mend(copy)
        report = copy.verify()
        restored = rows(copy)[table].get(key)
        if table == "epoch" and keys.unpack_id(key) in (1, 3, 4):
            continue  # 4 a restore opened, 1 nothing did, 3 has no data of its own
        assert report.problems == [], (key, report.problems)
        if table == "checkpoint":
            found = records.decode(restored or b"", records.CheckpointRecord)
            was = records.decode(value, records.CheckpointRecord)
            assert (found.epoch, found.kind, found.time) == (was.epoch, was.kind, was.time)
        else:
            assert restored == value


def test_a_branch_that_is_gone(sample: Sample) -> None:
    was = records.decode(rows(sample)["branch"][b"main"], records.BranchRecord)
    with sample.open() as hands:
        hands.drop("branch", b"main")
    assert "branch" in {problem.check for problem in sample.verify().problems}
    mend(sample)
    assert sample.verify().problems == []
    found = records.decode(rows(sample)["branch"][b"main"], records.BranchRecord)
    assert (found.name, found.head, found.applied) == (was.name, was.head, was.applied)
    assert readable(sample)


def test_a_format_record_that_is_gone(sample: Sample) -> None:
    with sample.open() as hands:
        hands.drop("meta", b"format")
    assert {problem.check for problem in sample.verify().problems} == {"format"}
    mend(sample)
    assert sample.verify().problems == []
    assert readable(sample)


def test_an_inode_that_the_base_still_has(sound_sample: Sample, sample: Sample) -> None:
    key = keys.inode_key(sample.inos["docs/readme"], 0)
    with sample.open() as hands:
        hands.put("inode", key, b"")
        hands.put("inode", key, b"garbage")
    (action,) = mend(sample).actions
    assert (action.how, action.table) == ("restored", "inode")
    was = records.unpack_inode(rows(sound_sample)["inode"][key])
    found = records.unpack_inode(rows(sample)["inode"][key])
    assert found._replace(atime=0) == was._replace(atime=0)


@pytest.mark.parametrize("name", ["no id", "0123456789aB", "", "fedcba987654"])
def test_a_checkpoint_with_an_id_of_which_nobody_tells(
    sound_sample: Sample, sample: Sample, name: str
) -> None:
    """Its key says which it is."""
    with sample.open() as hands:
        for key, value in hands.rows("checkpoint"):
            if records.decode(value, records.CheckpointRecord).epoch == 2:
                hands.change_record("checkpoint", key, records.CheckpointRecord, id=name)
    done = mend(sample)
    assert [action.table for action in done.actions] == ["checkpoint"]
    assert rows(sample) == rows(sound_sample)


# -- never worse ------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(40))
def test_any_damage_gets_better_or_stays(sample: Sample, seed: int) -> None:
    chance = random.Random(seed)
    with sample.open() as hands:
        for _ in range(chance.randrange(1, 6)):
            damage(hands, chance)
    damaged, before = rows(sample), sample.verify()
    try:
        done = mend(sample)
    except RepairRefusedError:
        assert rows(sample) == damaged
        return
    after = sample.verify()
    assert after.count == done.after.count <= before.count == done.before.count
    assert bool(done.actions) == (after.count < before.count)
    # No block that could be read is gone, and nothing that a name led to has lost it.
    for digest, value in damaged["block"].items():
        if len(digest) == codec.HASH_SIZE and codec.delta_reference(value) is None:
            try:
                codec.decode_block(value, digest)
            except Exception:
                continue
            assert digest in rows(sample)["block"]


def test_a_store_in_use_is_not_repaired(sample: Sample) -> None:
    fd = lock_owner(sample.store)
    try:
        with pytest.raises(StoreLockedError):
            mend(sample)
    finally:
        os.close(fd)
