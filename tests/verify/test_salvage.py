"""Damaged pages: `verify` finds them, a repair makes another file of what is sound. What a path
shows afterwards is what it showed before, or an error; never anything else."""

from __future__ import annotations

import errno
import gzip
import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from cowfs.errors import (
    CowfsError,
    RepairNoRoomError,
    RepairRefusedError,
    StoreFormatError,
    StoreLockedError,
)
from cowfs.format import records
from cowfs.format.version import VERSION, decode_format, sealed
from cowfs.service.repair import Repaired
from cowfs.service.verify.pages import verify_pages
from cowfs.store import steps
from cowfs.store.env import TABLES, lock_owner, open_store
from cowfs.store.pages import read_metas
from cowfs.store.snapshot import Reader
from tests.crash.forks import Child
from tests.store import version_1
from tests.store.version_1.states import states
from tests.support.volumes import Rig
from tests.verify.large import PAGE, Tree, a_page, build_large, pages, read, tree_of, write
from tests.verify.sample import Sample
from tests.verify.test_repair import mend, rows

STATES = ("", "one", "two")
SALVAGE_STEPS = [step for step in steps.STEPS if step.startswith("salvage.")]

LOSSLESS = {"link", "dirent", "change", "label", "operation", "origin", "base", "epoch", "(tables)"}
"""Tables of which a whole leaf can be made again of what others tell, or of the commit before.
(tables): LMDB's table of tables."""


@pytest.fixture(scope="session")
def sound_large(tmp_path_factory: pytest.TempPathFactory) -> Sample:
    return build_large(tmp_path_factory.mktemp("large"))


@pytest.fixture(scope="session")
def sound_trees(sound_large: Sample, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tree]:
    """What each state shows."""
    copy = sound_large.copy(tmp_path_factory.mktemp("trees") / "store")
    return {state: tree_of(copy, state) for state in STATES}


@pytest.fixture
def large(sound_large: Sample, tmp_path: Path) -> Sample:
    return sound_large.copy(tmp_path / "store")


def data_of(sample: Sample) -> bytes:
    return (sample.store / "data.mdb").read_bytes()


def found_by_verify(sample: Sample) -> set[tuple[str, str]]:
    """(check, table) of all problems."""
    try:
        report = sample.verify()
    except CowfsError:
        report = verify_pages(sample.store)
    return {(problem.check, problem.table) for problem in report.problems}


def repaired(sample: Sample) -> Repaired:
    """Repair, and see that the plan said so, that the damaged file is kept, and that the new one
    has no problems."""
    before = data_of(sample)
    files = set(os.listdir(sample.store))
    plan = mend(sample, dry_run=True)
    assert data_of(sample) == before
    assert set(os.listdir(sample.store)) - {"owner", "lock.mdb"} <= files
    done = mend(sample)
    assert [a.to_json() for a in done.actions] == [a.to_json() for a in plan.actions]
    assert (plan.kept, done.kept) == ("", str(sample.store / "data.mdb.damaged"))
    assert Path(done.kept).read_bytes() == before
    assert not (sample.store / "data.mdb.salvage").exists()
    assert sample.verify().problems == []
    assert mend(sample).actions == []
    return done


def lost_paths(sample: Sample, trees: dict[str, Tree], *, attributes: bool = True) -> set[bytes]:
    """Paths that any state cannot show any more. All others must be as they were."""
    lost = set()
    for state, was in trees.items():
        found = tree_of(sample, state)
        assert found.keys() == was.keys()
        for path, facts in was.items():
            shown = found[path]
            if not attributes and not isinstance(facts, int) and not isinstance(shown, int):
                facts, shown = facts._replace(xattrs={}), shown._replace(xattrs={})
            if shown != facts:
                assert shown == errno.EIO, (state, path)
                lost.add(path)
    return lost


def zero(sample: Sample, page: int) -> None:
    write(sample, page, bytes(PAGE))


def flip_header(sample: Sample, page: int) -> None:
    """Its number."""
    write(sample, page, bytes((read(sample, page)[0] ^ 4,)))


def flip_lower(sample: Sample, page: int) -> None:
    """Where its nodes' offsets end; of an overflow page, how many pages follow."""
    write(sample, page, bytes((read(sample, page)[12] ^ 64,)), 12)


def replace_by_another(sample: Sample, page: int) -> None:
    """By one of its own table, where there is one."""
    found = pages(sample)
    (kind,) = [(p.table, p.kind) for p in found if p.number == page]
    same = [p.number for p in found if (p.table, p.kind) == kind and p.number != page]
    other = next((p.number for p in found if p.kind == "leaf" and p.table == "change"), 0)
    write(sample, page, read(sample, same[0] if same else other))


Way = Callable[[Sample, int], None]


@pytest.mark.parametrize(
    ("table", "way"),
    [
        ("inode", zero),
        ("dirent", flip_header),
        ("link", flip_lower),
        ("extent", zero),
        ("block", replace_by_another),
        ("change", flip_lower),
        ("piece", zero),
    ],
)
def test_a_branch_page(large: Sample, sound_large: Sample, table: str, way: Way) -> None:
    """The leaves below it are found: their records say of which table they are."""
    way(large, a_page(large, table, "branch"))
    assert ("structure", table) in found_by_verify(large)
    repaired(large)
    assert rows(large) == rows(sound_large)


@pytest.mark.parametrize("table", sorted({*TABLES} - {"hardlink", "orphan"}))
def test_a_bit_of_a_leaf_page(large: Sample, sound_large: Sample, table: str) -> None:
    """Its records are whole."""
    way = flip_header if len(table) % 2 else flip_lower
    way(large, a_page(large, table, "leaf"))
    assert ("structure", table) in found_by_verify(large)
    repaired(large)
    assert rows(large) == rows(sound_large)


@pytest.mark.parametrize("seed", range(6))
def test_a_bit_anywhere_in_a_leaf_page(
    large: Sample, sound_trees: dict[str, Tree], seed: int
) -> None:
    """At most one record is lost, and what was wrong with another can be told."""
    chance = random.Random(seed)
    page = a_page(large, chance.choice(["inode", "dirent", "link", "extent", "change"]), "leaf")
    at = chance.randrange(PAGE)
    write(large, page, bytes((read(large, page)[at] ^ 1 << chance.randrange(8),)), at)
    if found_by_verify(large):
        mend(large)
    assert large.verify().problems == []
    assert len(lost_paths(large, sound_trees)) <= 2  # a file may have two names


@pytest.mark.parametrize(
    ("table", "way"),
    [
        ("inode", zero),
        ("dirent", replace_by_another),
        ("link", zero),
        ("extent", replace_by_another),
        ("block", zero),
        ("change", replace_by_another),
    ],
)
def test_a_leaf_page_that_is_gone(
    large: Sample, sound_trees: dict[str, Tree], table: str, way: Way
) -> None:
    way(large, a_page(large, table, "leaf"))
    assert ("structure", table) in found_by_verify(large)
    done = repaired(large)
    lost = lost_paths(large, sound_trees)
    assert not lost if table in LOSSLESS else 0 < len(lost) <= 70
    told = {path for action in done.actions for path in action.paths}
    told |= {path for note in large.verify().notes for path in note.paths}
    assert {os.fsdecode(path) for path in lost} <= told


@pytest.mark.parametrize("table", ["inode", "link", "extent", "block"])
def test_verify_names_what_lies_behind_a_page(
    large: Sample, sound_trees: dict[str, Tree], table: str
) -> None:
    if table == "link":  # which is how paths are found
        zero(large, a_page(large, "link", "leaf"))
        assert large.verify().problems[0].paths == ()
        return
    zero(large, a_page(large, table, "leaf"))
    (problem,) = [p for p in large.verify().problems if p.check == "structure"]
    assert {large.names[name] for name in problem.checkpoints} >= {"one", "two", "now"}
    mend(large)
    lost = {os.fsdecode(path) for path in lost_paths(large, {"": sound_trees[""]})}
    assert lost
    assert len(problem.paths) == 64 or lost <= set(problem.paths)


def test_both_halves_of_names(large: Sample, sound_trees: dict[str, Tree]) -> None:
    """Of a name that only a change record tells of nothing is shown, but that it is there. What it
    was the name of has none any more, which `verify` goes on to report."""
    links = [p.number for p in pages(large) if (p.table, p.kind) == ("link", "leaf")]
    for page in (a_page(large, "dirent", "leaf"), *links):
        zero(large, page)
    done = mend(large)
    assert {problem.check for problem in large.verify().problems} <= {"inode-links"}
    found, was = tree_of(large), sound_trees[""]
    assert found.keys() == was.keys()
    lost = {path for path, facts in was.items() if found[path] == errno.EIO != facts}
    assert lost
    told = {os.fsencode(path) for action in done.actions for path in action.paths}
    assert {path.rpartition(b"/")[2] for path in lost} <= told


@pytest.mark.parametrize(
    "table",
    [
        *("base", "branch", "checkpoint", "epoch", "label", "meta", "operation", "origin"),
        *("session", "transcript", "piece", "context"),
    ],
)
def test_the_only_leaf_page_of_a_table(
    large: Sample, sound_trees: dict[str, Tree], table: str
) -> None:
    zero(large, a_page(large, table, "leaf"))
    assert ("structure", table) in found_by_verify(large)
    repaired(large)
    assert lost_paths(large, sound_trees) == set()


def test_attributes_are_the_one_thing_that_nothing_else_tells_of(
    large: Sample, sound_trees: dict[str, Tree]
) -> None:
    zero(large, a_page(large, "xattr", "leaf"))
    done = repaired(large)
    assert lost_paths(large, sound_trees, attributes=False) == set()
    (action,) = [a for a in done.actions if a.table == "xattr" and a.paths]
    assert action.how == "marked"
    assert "d0/file13" in action.paths


@pytest.mark.parametrize("way", [zero, flip_lower, replace_by_another])
def test_the_table_of_tables(large: Sample, sound_large: Sample, way: Way) -> None:
    """The records of every table are found without it."""
    way(large, a_page(large, "(tables)", "leaf"))
    assert ("structure", "(tables)") in found_by_verify(large)
    repaired(large)
    assert rows(large) == rows(sound_large)


@pytest.mark.parametrize("way", [zero, flip_header])
def test_the_list_of_free_pages(large: Sample, sound_large: Sample, way: Way) -> None:
    way(large, a_page(large, "(free list)", "leaf"))
    assert ("structure", "(free list)") in found_by_verify(large)
    repaired(large)
    assert rows(large) == rows(sound_large)


@pytest.mark.parametrize("way", [zero, replace_by_another])
def test_a_branch_and_the_list_of_free_pages(
    large: Sample, sound_trees: dict[str, Tree], way: Way
) -> None:
    """What lies in pages that nothing leads to may be stale: it is compared with all else."""
    chosen = [a_page(large, "(free list)", "leaf"), a_page(large, "inode", "branch")]
    other = read(large, a_page(large, "change", "leaf"))
    for page in chosen:
        write(large, page, other if way is replace_by_another else bytes(PAGE))
    repaired(large)
    lost_paths(large, sound_trees)


@pytest.mark.parametrize(("way", "lost"), [(zero, 1), (flip_header, 0), (flip_lower, 0)])
def test_the_first_page_of_a_long_block(
    large: Sample, sound_trees: dict[str, Tree], way: Way, lost: int
) -> None:
    """Where only its header is damaged the hash tells that the bytes are right."""
    way(large, a_page(large, "block", "overflow"))
    assert ("structure", "block") in found_by_verify(large)
    repaired(large)
    assert len(lost_paths(large, sound_trees)) == lost


def test_a_page_in_the_middle_of_a_block(large: Sample, sound_trees: dict[str, Tree]) -> None:
    """No damage of LMDB's structure: the block's hash tells, and the file stays as it is."""
    zero(large, a_page(large, "block", "more"))
    assert found_by_verify(large) == {("block-damaged", "block")}
    done = mend(large)
    assert done.kept == ""
    assert len(lost_paths(large, sound_trees)) == 1


@pytest.mark.parametrize("seed", range(4))
def test_several_pages(large: Sample, sound_trees: dict[str, Tree], seed: int) -> None:
    chance = random.Random(seed)
    for page in chance.sample([p.number for p in pages(large) if p.kind != "more"], 4):
        chance.choice((zero, flip_header, flip_lower))(large, page)
    repaired(large)
    lost_paths(large, sound_trees, attributes=False)


# -- meta pages -------------------------------------------------------------------------------


def newest_meta(sample: Sample) -> int:
    return read_metas(sample.store / "data.mdb")[0].page


@pytest.mark.parametrize("at", [0, 10, 16, 20, 40])
def test_a_bit_of_a_meta_page(large: Sample, sound_large: Sample, at: int) -> None:
    """Its number, flags, magic, version, page size: what it leads to is whole all the same."""
    newest = at % 4 == 0
    page = newest_meta(large) if newest else 1 - newest_meta(large)
    write(large, page, bytes((read(large, page)[at] ^ 2,)), at)
    assert ("structure", "(meta)") in found_by_verify(large)
    repaired(large)
    assert rows(large) == rows(sound_large)


def test_the_older_meta_page(large: Sample, sound_large: Sample) -> None:
    zero(large, 1 - newest_meta(large))
    assert ("structure", "(meta)") in found_by_verify(large)
    repaired(large)
    assert rows(large) == rows(sound_large)


def test_the_newest_meta_page(large: Sample, sound_trees: dict[str, Tree]) -> None:
    """The other one leads to the commit before, which LMDB left whole."""
    zero(large, newest_meta(large))
    done = repaired(large)
    assert "the last commit may be lost" in done.actions[0].detail
    found = tree_of(large)
    assert [p for p, facts in sound_trees[""].items() if found[p] != facts] == [b"d0/file11"]


def test_a_root_of_the_newest_commit(large: Sample, sound_trees: dict[str, Tree]) -> None:
    """A meta page that leads into nowhere: the commit before is whole, and it is said what the
    last one had."""
    page = newest_meta(large)
    write(large, page, (2).to_bytes(8, "little"), 16 + 24 + 48 + 40)  # root of the table of tables
    assert any(check == "structure" for check, _ in found_by_verify(large))
    repaired(large)
    found = tree_of(large)
    assert {p for p, facts in sound_trees[""].items() if found[p] != facts} <= {b"d0/file11"}


def test_both_meta_pages(large: Sample) -> None:
    zero(large, 0)
    zero(large, 1)
    before = data_of(large)
    assert ("structure", "(meta)") in found_by_verify(large)
    with pytest.raises(RepairRefusedError, match="neither of its two meta pages"):
        mend(large)
    assert data_of(large) == before


# -- the file ---------------------------------------------------------------------------------


def test_a_branch_that_leads_to_a_page_of_before(
    large: Sample, sound_large: Sample, sound_trees: dict[str, Tree]
) -> None:
    """A free page may still be what it was: whole, with the right keys, and old."""
    was = {p.number for p in pages(large) if (p.table, p.kind) == ("inode", "leaf")}
    (branch,) = [p.number for p in pages(large) if (p.table, p.kind) == ("inode", "branch")]
    rig = Rig(large.store, large.base)
    rig.chmod(b"d4/file30", 0o100600)
    rig.volume.sync()
    rig.finish(check=False)
    wanted, trees = rows(large), {"": tree_of(large)}
    (fresh,) = {p.number for p in pages(large) if (p.table, p.kind) == ("inode", "leaf")} - was
    (now,) = [p.number for p in pages(large) if (p.table, p.kind) == ("inode", "branch")]
    (stale,) = was - {p.number for p in pages(large)}
    data = read(large, now).replace(fresh.to_bytes(4, "little"), stale.to_bytes(4, "little"))
    assert now != branch
    write(large, now, data)
    assert ("structure", "(free list)") in found_by_verify(large)
    repaired(large)
    assert rows(large) == wanted
    assert tree_of(large) == trees[""]


@pytest.mark.parametrize("part", [0.5, 0.9])
def test_a_file_that_was_cut_off(large: Sample, sound_trees: dict[str, Tree], part: float) -> None:
    path = large.store / "data.mdb"
    os.truncate(path, int(path.stat().st_size * part) // PAGE * PAGE)
    assert any(check == "structure" for check, _ in found_by_verify(large))
    try:
        repaired(large)
    except RepairRefusedError:
        return  # the history itself is gone
    for state in STATES:
        found = tree_of(large, state)
        for name, facts in sound_trees[state].items():
            assert found.get(name, facts) in (facts, errno.EIO) or part < 0.9


def test_a_file_that_was_kept_is_never_overwritten(large: Sample) -> None:
    flip_header(large, a_page(large, "link", "leaf"))
    first = data_of(large)
    assert mend(large).kept.endswith("data.mdb.damaged")
    flip_header(large, a_page(large, "inode", "leaf"))
    second = data_of(large)
    assert mend(large).kept.endswith("data.mdb.damaged.1")
    assert (large.store / "data.mdb.damaged").read_bytes() == first
    assert (large.store / "data.mdb.damaged.1").read_bytes() == second


def test_no_room_for_another_file(large: Sample, monkeypatch: pytest.MonkeyPatch) -> None:
    flip_header(large, a_page(large, "link", "leaf"))
    before = data_of(large)
    real = os.statvfs(large.store)
    full = os.statvfs_result((*real[:3], 100, 100, *real[5:]))
    monkeypatch.setattr(os, "statvfs", lambda path: full)
    with pytest.raises(RepairNoRoomError, match="are free"):
        mend(large)
    assert data_of(large) == before
    assert not (large.store / "data.mdb.salvage").exists()


def test_a_damaged_store_in_use_is_not_repaired(large: Sample) -> None:
    flip_header(large, a_page(large, "link", "leaf"))
    fd = lock_owner(large.store)
    try:
        with pytest.raises(StoreLockedError):
            mend(large)
    finally:
        os.close(fd)


@pytest.mark.parametrize("step", SALVAGE_STEPS)
def test_killed_at_each_step(large: Sample, sound_large: Sample, step: str) -> None:
    """The old file or the new one, each whole; the next repair goes on."""
    flip_header(large, a_page(large, "link", "leaf"))
    before = data_of(large)

    def work(report: Callable[..., None]) -> None:
        steps.arm(step)
        mend(large)

    child = Child(work)
    assert list(child.reports()) == []
    assert child.wait()
    if data_of(large) == before:
        assert mend(large).kept
    assert rows(large) == rows(sound_large)
    assert large.verify().problems == []
    assert (large.store / "data.mdb.damaged").read_bytes() == before
    assert not (large.store / "data.mdb.damaged.1").exists()


def test_a_store_of_a_newer_version_is_left_alone(large: Sample) -> None:
    with large.open() as hands:
        record = decode_format(hands.get("meta", b"format"))
        newer = sealed(msgspec.structs.replace(record, version=VERSION + 1))
        hands.put("meta", b"format", records.encode(newer))
    flip_header(large, a_page(large, "link", "leaf"))
    before = data_of(large)
    with pytest.raises(StoreFormatError):
        mend(large)
    assert data_of(large) == before


@pytest.mark.parametrize("table", ["(free list)", "link", "change", "label"])
def test_a_store_of_version_1(tmp_path: Path, table: str) -> None:
    """It has no checksums: sound pages are taken, what is told elsewhere is made anew. The store is
    upgraded by the way."""
    old = tmp_path / "store"
    old.mkdir()
    where = Path(version_1.__file__).parent
    (old / "data.mdb").write_bytes(gzip.decompress((where / "store.gz").read_bytes()))
    (tmp_path / "base").mkdir()
    sample = Sample(old, tmp_path / "base", {}, {})
    zero(sample, a_page(sample, table, "leaf"))
    before = data_of(sample)
    done = mend(sample, with_base=False)
    assert Path(done.kept).read_bytes() == before
    store = open_store(old, writable=False)
    try:
        assert store.version == VERSION
        with Reader(store) as reader:
            assert states(reader) == json.loads((where / "states.json").read_text("utf-8"))
    finally:
        store.close()


def test_what_an_interrupted_repair_left_goes_with_the_next(large: Sample) -> None:
    (large.store / "data.mdb.salvage").mkdir()
    shutil.copy(large.store / "data.mdb", large.store / "data.mdb.salvage" / "data.mdb")
    flip_header(large, a_page(large, "link", "leaf"))
    repaired(large)
