"""Contents of volatile paths of old checkpoints: what goes, what stays, and who is told."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import random
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec
import pytest

from cowfs.errors import CowfsError, StoreFormatError, ThinnedError
from cowfs.format import keys, records, version
from cowfs.format.records import CheckpointRecord
from cowfs.service import config, housekeeping
from cowfs.service import restore as restoring
from cowfs.service.collecting import Collected, Pace, Thinning
from cowfs.service.config import Retention
from cowfs.service.diff import diff
from cowfs.service.export import export_tree, read_file
from cowfs.service.preview import preview
from cowfs.service.removing import pin
from cowfs.service.repair import repair
from cowfs.service.retention import thinnable
from cowfs.service.timeline import timeline
from cowfs.service.verify import verify_store
from cowfs.service.workspace import ReadOnly
from cowfs.store.compaction import compact
from cowfs.store.env import open_store
from cowfs.store.rewriting import silent
from cowfs.store.snapshot import Reader
from cowfs.store.writer import now
from cowfs.types import BLOCK_SIZE
from cowfs.volume import data, history, removing
from cowfs.volume.posix import PosixError
from tests.collecting.looking import (
    THINNED,
    State,
    check_differences,
    check_verified,
    collect_garbage,
    look,
)
from tests.support.volumes import AUTHOR, Rig
from tests.verify.large import PAGE, a_page, write
from tests.verify.sample import Sample

VOLATILE = (b"target", b"node_modules")
NOISE = random.Random(3).randbytes
DAY = 86_400_000_000_000
KEEP_ALL = Retention("", 0, 0, 0, 0, 0, 0)


@pytest.fixture
def rig(volume: Rig) -> Rig:
    volume.mkdir(b"target")
    volume.mkdir(b"src")
    return volume


def thin(
    rig: Rig,
    old: Iterable[CheckpointRecord],
    patterns: tuple[bytes, ...] = VOLATILE,
    most: int = 1 << 60,
) -> Collected:
    epochs = frozenset(record.epoch for record in old)
    return collect_garbage(rig, most, Thinning(epochs, patterns))


def stored(rig: Rig, of: CheckpointRecord) -> CheckpointRecord:
    """Its record as it is now."""
    rig.volume.look_again()
    value = rig.volume.reader.get("checkpoint", of.id.encode())
    return records.decode(value or b"", CheckpointRecord)


@contextlib.contextmanager
def read(rig: Rig) -> Iterator[ReadOnly]:
    """What a command that reads sees."""
    rig.volume.sync()
    with Reader(rig.volume.store) as reader:
        yield ReadOnly(rig.volume.store, reader, rig.base_fd)


def contents(state: State) -> dict[bytes, bytes]:
    return {path: shown.content for path, shown in state.items() if shown.content}


def without_contents(state: State) -> dict[bytes, object]:
    return {path: shown._replace(content=b"") for path, shown in state.items()}


# -- what goes, and what stays --------------------------------------------------------------------


def test_contents_go_and_names_stay(rig: Rig) -> None:
    rig.create(b"target/out", NOISE(2 * BLOCK_SIZE))
    rig.create(b"src/main", b"source")
    rig.setxattr(b"target/out", b"user.a", b"b")
    one = rig.checkpoint()
    before = look(rig, one.epoch)
    rig.save(b"target/out", b"new")
    rig.save(b"src/main", b"changed")
    rig.checkpoint()
    rig.checkpoint()
    done = thin(rig, [one])
    assert (done.extents, done.thinned, done.complete) == (2, {one.epoch}, True)
    assert done.bytes >= 2 * BLOCK_SIZE
    after = look(rig, one.epoch)
    assert contents(after) == {b"target/out": THINNED, b"src/main": b"source"}
    assert without_contents(after) == without_contents(before)
    assert stored(rig, one).thinned == ("target", "node_modules")
    assert rig.read(b"target/out") == b"new"
    assert thin(rig, [one]).extents == 0, "there is nothing left to do"
    check_verified(rig)


@pytest.mark.parametrize("again", [False, True])
def test_what_others_show_stays(rig: Rig, again: bool) -> None:
    """The same version, or the same bytes written again, in a state that is kept whole."""
    content = NOISE(BLOCK_SIZE)
    rig.create(b"target/out", content)
    one = rig.checkpoint()
    if again:
        rig.save(b"target/out", content)
    two = rig.checkpoint()
    rig.checkpoint()
    assert thin(rig, [one]).thinned == ({one.epoch} if again else set())
    assert look(rig, two.epoch)[b"target/out"].content == content
    assert rig.read(b"target/out") == content
    assert bool(stored(rig, one).thinned) is again
    check_verified(rig)


def test_the_present_state_and_what_it_came_from_stay(rig: Rig) -> None:
    rig.create(b"target/out", b"old")
    one = rig.checkpoint()
    rig.save(b"target/out", b"new")  # not in a checkpoint yet
    assert thin(rig, [one]).extents == 0
    assert look(rig, one.epoch)[b"target/out"].content == b"old"


def test_the_first_checkpoint_and_what_an_apply_needs_stay(rig: Rig) -> None:
    rig.create(b"target/out", b"old")
    one = rig.checkpoint()
    rig.unlink(b"target/out")
    rig.checkpoint()
    rig.checkpoint()
    rig.volume.branch = msgspec.structs.replace(rig.volume.branch, applied=one.epoch)
    rig.volume.put_branch()
    rig.volume.sync()
    assert thin(rig, [one]).extents == 0
    epochs = frozenset({0, one.epoch})
    assert collect_garbage(rig, thinning=Thinning(epochs, (b"*",))).extents == 0
    rig.volume.branch = msgspec.structs.replace(rig.volume.branch, applied=0)
    rig.volume.put_branch()
    rig.volume.sync()
    assert thin(rig, [one]).extents == 1


def test_a_name_outside_keeps_a_file(rig: Rig) -> None:
    """A hard link that the old state has elsewhere, too (link(2): it is the same file)."""
    rig.create(b"target/out", b"linked")
    rig.create(b"target/other", b"alone")
    rig.link(b"target/out", b"src/out")
    one = rig.checkpoint()
    rig.remove_tree(b"target")
    rig.unlink(b"src/out")
    rig.checkpoint()
    rig.checkpoint()
    thin(rig, [one])
    found = contents(look(rig, one.epoch))
    assert found == {b"target/out": b"linked", b"src/out": b"linked", b"target/other": THINNED}
    check_verified(rig)


def test_both_names_inside_keep_nothing(rig: Rig) -> None:
    rig.create(b"target/out", b"linked")
    rig.mkdir(b"src/node_modules")
    rig.link(b"target/out", b"src/node_modules/out")
    one = rig.checkpoint()
    rig.remove_tree(b"target")
    rig.remove_tree(b"src")
    rig.checkpoint()
    rig.checkpoint()
    thin(rig, [one])
    assert set(contents(look(rig, one.epoch)).values()) == {THINNED}


def test_what_was_moved_out_stays(rig: Rig) -> None:
    """A file, and a directory with all in it, that a later state has elsewhere."""
    rig.create(b"target/out", b"moved")
    rig.mkdir(b"target/deep")
    rig.create(b"target/deep/x", b"with it")
    one = rig.checkpoint()
    rig.rename(b"target/out", b"src/out")
    rig.rename(b"target/deep", b"src/deep")
    two = rig.checkpoint()
    rig.remove_tree(b"src")
    rig.checkpoint()
    rig.checkpoint()
    thin(rig, [one])
    assert look(rig, one.epoch)[b"target/out"].content == b"moved"
    assert look(rig, two.epoch)[b"src/deep/x"].content == b"with it"
    thin(rig, [one, two])  # the state that has it elsewhere is old as well, and still shows it
    assert contents(look(rig, two.epoch)) == {b"src/out": b"moved", b"src/deep/x": b"with it"}
    assert THINNED not in contents(look(rig, one.epoch)).values()
    assert stored(rig, two).thinned == ()
    check_verified(rig)


def test_what_was_moved_in_goes_only_where_it_is_volatile(rig: Rig) -> None:
    """What lay elsewhere before was written there: the version is the same in both states."""
    rig.mkdir(b"src/deep")
    rig.create(b"src/deep/x", b"old")
    one = rig.checkpoint()
    rig.rename(b"src/deep", b"target/deep")
    two = rig.checkpoint()
    rig.write(b"target/deep/x", b"new")
    three = rig.checkpoint()
    rig.remove_tree(b"target")
    rig.checkpoint()
    rig.checkpoint()
    thin(rig, [one, two, three])
    assert contents(look(rig, one.epoch)) == {b"src/deep/x": b"old"}
    assert contents(look(rig, two.epoch)) == {b"target/deep/x": b"old"}
    assert contents(look(rig, three.epoch)) == {b"target/deep/x": THINNED}
    check_verified(rig)


def test_two_directories_that_changed_places(rig: Rig) -> None:
    """Each is in the other, one after the other: what a path is depends on the state."""
    rig.mkdir(b"a")
    rig.mkdir(b"a/target")
    rig.create(b"a/target/x", b"volatile")
    one = rig.checkpoint()
    rig.rename(b"a/target", b"b")
    rig.rename(b"a", b"b/a")
    rig.write(b"b/x", b"elsewhere")
    two = rig.checkpoint()
    rig.remove_tree(b"b")
    rig.checkpoint()
    rig.checkpoint()
    thin(rig, [one, two])
    assert contents(look(rig, one.epoch)) == {b"a/target/x": THINNED}
    assert contents(look(rig, two.epoch)) == {b"b/x": b"elsewhere"}


def test_an_older_version_does_not_show_through(rig: Rig) -> None:
    """The extent stays where it was, without its block."""
    rig.create(b"target/out", b"first")
    kept = rig.checkpoint()
    rig.write(b"target/out", b"later")
    one = rig.checkpoint()
    rig.write(b"target/out", b"third")
    rig.checkpoint()
    rig.checkpoint()
    thin(rig, [one])
    assert contents(look(rig, kept.epoch)) == {b"target/out": b"first"}
    assert contents(look(rig, one.epoch)) == {b"target/out": THINNED}
    check_verified(rig)


def test_what_is_open_without_a_name_is_left(rig: Rig) -> None:
    rig.create(b"target/out", b"open")
    one = rig.checkpoint()
    handle = rig.open(b"target/out")
    rig.unlink(b"target/out")
    rig.checkpoint()
    rig.checkpoint()
    done = thin(rig, [one])
    assert (done.extents, done.left) == (0, True)
    assert handle.read() == b"open"
    handle.close()
    assert thin(rig, [one]).extents == 1


def test_symbolic_links_and_empty_files_have_nothing_to_lose(rig: Rig) -> None:
    rig.symlink(b"somewhere", b"target/link")
    rig.create(b"target/empty")
    rig.create(b"target/zeros", bytes(2 * BLOCK_SIZE))
    one = rig.checkpoint()
    rig.remove_tree(b"target")
    rig.checkpoint()
    rig.checkpoint()
    assert thin(rig, [one]).thinned == set()
    assert look(rig, one.epoch)[b"target/zeros"].content == bytes(2 * BLOCK_SIZE)


def test_what_is_in_the_base_stays(open_rig: object, base: Path) -> None:
    """Nothing of it is in the store but what was written."""
    (base / "target").mkdir()
    (base / "target" / "old").write_bytes(b"of the base")
    (base / "target" / "new").write_bytes(b"of the base")
    assert callable(open_rig)
    rig: Rig = open_rig()
    rig.paths()
    rig.write(b"target/new", b"written")
    one = rig.checkpoint()
    rig.remove_tree(b"target")
    rig.checkpoint()
    rig.checkpoint()
    thin(rig, [one])
    found = contents(look(rig, one.epoch))
    assert found == {b"target/old": b"of the base", b"target/new": THINNED}
    check_verified(rig)


def test_a_large_file_takes_many_steps(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    from cowfs.service.collecting import thinning

    monkeypatch.setattr(thinning, "_TAKEN", 4)
    for name in (b"a", b"b", b"c"):
        rig.create(b"target/" + name, NOISE(7 * BLOCK_SIZE))
    one = rig.checkpoint()
    rig.remove_tree(b"target")
    rig.checkpoint()
    rig.checkpoint()
    for most in range(1, 9):
        thin(rig, [one], most=most)
        check_verified(rig)
    thin(rig, [one])
    assert set(contents(look(rig, one.epoch)).values()) == {THINNED}


def test_one_that_is_pinned_meanwhile_is_spared(rig: Rig) -> None:
    """The pin counts at once (`cowfs pin`), whatever a run began with."""
    rig.create(b"target/out", b"old")
    one = rig.checkpoint()
    two = rig.checkpoint()
    rig.unlink(b"target/out")
    rig.checkpoint()
    rig.checkpoint()
    pin(rig.engine, contextlib.nullcontext(), two.id, pinned=True)
    assert thin(rig, [one, two]).extents == 0
    assert contents(look(rig, one.epoch)) == {b"target/out": b"old"}
    assert stored(rig, one).thinned == ()


def test_states_still_differ_as_they_did(rig: Rig) -> None:
    marks = []
    for number in range(4):
        rig.save(b"target/out", b"%d" % number)
        rig.save(b"src/main", b"%d" % number)
        marks.append(rig.checkpoint())
    rig.checkpoint()
    thin(rig, marks[:3])
    check_differences(rig, {record.epoch: look(rig, record.epoch) for record in marks})


# -- who is told ----------------------------------------------------------------------------------


@pytest.fixture
def thinned(rig: Rig) -> tuple[Rig, CheckpointRecord]:
    """A checkpoint of which `target/out` is thinned, of two blocks one is still there."""
    rig.create(b"target/out", NOISE(2 * BLOCK_SIZE))
    rig.create(b"target/same", b"same")
    rig.create(b"src/main", b"old")
    one = rig.checkpoint()
    rig.write(b"target/out", b"new", BLOCK_SIZE)
    rig.write(b"src/main", b"new")
    rig.checkpoint()
    rig.checkpoint()
    assert thin(rig, [one]).extents == 1
    return rig, one


def test_half_a_file_is_not_shown(thinned: tuple[Rig, CheckpointRecord]) -> None:
    rig, one = thinned
    with read(rig) as workspace:
        point = workspace.point(one.id)
        with pytest.raises(ThinnedError, match=f"target/out is not kept in {one.id[:8]}"):
            list(read_file(workspace, point, b"target/out")[1])
        assert b"".join(read_file(workspace, point, b"target/same")[1]) == b"same"


def test_looking_into_it(thinned: tuple[Rig, CheckpointRecord]) -> None:
    """As below .cowfs/checkpoints: the file is there, and reading any of it is ENODATA."""
    rig, one = thinned
    visits = rig.volume.visits
    view = visits.view(visits.visit(one.id))
    target = view.find(1, b"target", brought=True)
    assert target is not None
    out, same = (view.find(target.ino, name, brought=True) for name in (b"out", b"same"))
    assert out is not None
    assert same is not None
    assert out.size == 2 * BLOCK_SIZE
    for offset in (0, BLOCK_SIZE):
        with pytest.raises(PosixError) as error:
            data.read(view, out, offset, 10)
        assert error.value.errno == errno.ENODATA
    assert data.read(view, same, 0, 10) == b"same"


def test_one_that_was_looked_into_before(rig: Rig) -> None:
    rig.create(b"target/out", NOISE(2 * BLOCK_SIZE))
    one = rig.checkpoint()
    rig.write(b"target/out", b"new", BLOCK_SIZE)
    rig.checkpoint()
    rig.checkpoint()
    visits = rig.volume.visits
    visit = visits.visit(one.id)
    target = visits.view(visit).find(1, b"target", brought=True)
    assert target is not None
    out = visits.view(visit).find(target.ino, b"out", brought=True)
    assert out is not None
    assert data.read(visits.view(visit), out, 0, 4) == rig.read(b"target/out")[:4]
    thin(rig, [one])
    with pytest.raises(PosixError) as error:
        data.read(visits.view(visit), out, 0, 4)
    assert error.value.errno == errno.ENODATA


def test_a_restore_leaves_them_alone(thinned: tuple[Rig, CheckpointRecord]) -> None:
    rig, one = thinned
    config.change(rig.store, "volatile.paths", ["target"])
    before = rig.read(b"target/out")
    result = restoring.restore(rig.engine, AUTHOR, one.id)
    assert result.left_alone == (b"target",)
    assert (rig.read(b"src/main"), rig.read(b"target/out")) == (b"old", before)
    rig.undo()
    assert rig.read(b"src/main") == b"new"


def refused(rig: Rig, one: CheckpointRecord, **asked: object) -> ThinnedError:
    """A restore that is refused changes nothing, and makes no checkpoint."""
    before, checkpoints = rig.tree(), len(list(rig.volume.reader.scan("checkpoint")))
    with pytest.raises(ThinnedError) as error:
        restoring.restore(rig.engine, AUTHOR, one.id, **asked)  # type: ignore[arg-type]
    rig.volume.sync()
    assert rig.tree() == before
    assert len(list(rig.volume.reader.scan("checkpoint"))) == checkpoints
    return error.value


def test_one_that_asks_for_them_is_refused(thinned: tuple[Rig, CheckpointRecord]) -> None:
    rig, one = thinned
    config.change(rig.store, "volatile.paths", ["target"])
    error = refused(rig, one, volatile=True)
    assert error.details == {"path": "target/out", "where": one.id[:8]}
    refused(rig, one, paths=[b"target"])
    refused(rig, one, paths=[b"target/out"])
    config.change(rig.store, "volatile.paths", None)
    refused(rig, one)
    refused(rig, one, exclude=[b"same"])
    restoring.restore(rig.engine, AUTHOR, one.id, paths=[b"target/same"])
    restoring.restore(rig.engine, AUTHOR, one.id, exclude=[b"out"])
    assert rig.read(b"src/main") == b"old"


def test_the_preview_says_the_same(thinned: tuple[Rig, CheckpointRecord]) -> None:
    rig, one = thinned
    config.change(rig.store, "volatile.paths", ["target"])
    with read(rig) as workspace:
        found = preview(workspace, rig.store, one.id)
        assert [change.path for change in found.changes] == [b"src/main"]
        with pytest.raises(ThinnedError):
            preview(workspace, rig.store, one.id, volatile=True)


def test_what_did_not_change_since_can_be_restored(thinned: tuple[Rig, CheckpointRecord]) -> None:
    """It is in the present state as well."""
    rig, one = thinned
    restoring.restore(rig.engine, AUTHOR, one.id, paths=[b"target/same"])
    rig.unlink(b"target/same")
    rig.volume.sync()
    restoring.restore(rig.engine, AUTHOR, one.id, paths=[b"target/same"])
    assert rig.read(b"target/same") == b"same"


def test_diff_and_log(thinned: tuple[Rig, CheckpointRecord]) -> None:
    rig, one = thinned
    with read(rig) as workspace:
        changes = diff(workspace, workspace.point(one.id), workspace.point("@"))
        found = {(change.status, change.path) for change in changes}
        assert found == {("M", b"target/out"), ("M", b"src/main")}
        marks = {row.id: row.thinned for row in timeline(workspace)}
    assert marks.pop(one.id) == ("target", "node_modules")
    assert set(marks.values()) == {()}


def test_what_did_not_change_between_two_that_are_thinned(rig: Rig) -> None:
    rig.create(b"target/out", b"old")
    one = rig.checkpoint()
    rig.chmod(b"target/out", 0o600)
    two = rig.checkpoint()
    rig.remove_tree(b"target")
    rig.checkpoint()
    rig.checkpoint()
    thin(rig, [one, two])
    with read(rig) as workspace:
        changes = diff(workspace, workspace.point(one.id), workspace.point(two.id))
    assert [(change.status, change.path) for change in changes] == [("P", b"target/out")]


def test_an_export_leaves_it_out_and_says_so(
    thinned: tuple[Rig, CheckpointRecord], tmp_path: Path
) -> None:
    rig, one = thinned
    with read(rig) as workspace:
        point = workspace.point(one.id)
        done = export_tree(workspace, point, tmp_path / "out")
        assert [(p.path, p.what) for p in done.problems] == [(b"target/out", "content")]
        assert not (tmp_path / "out" / "target" / "out").exists()
        assert (tmp_path / "out" / "target" / "same").read_bytes() == b"same"
        done = export_tree(workspace, point, io.BytesIO())
        assert [(p.path, p.what) for p in done.problems] == [(b"target/out", "content")]


# -- which ----------------------------------------------------------------------------------------


def row(number: int, age: float, **fields: object) -> CheckpointRecord:
    record = CheckpointRecord(
        f"{number:012x}", number, "main", "manual", 100 * DAY - int(age * DAY)
    )
    return msgspec.structs.replace(record, **fields)


def names(found: list[CheckpointRecord]) -> list[int]:
    return [record.epoch for record in found]


def test_which_are_old() -> None:
    found = [row(1, 9), row(2, 8), row(3, 7), row(4, 6), row(5, 0)]
    assert names(thinnable(found, (), 100 * DAY, 7)) == [1, 2, 3]
    assert names(thinnable(found, (), 100 * DAY, 0)) == [1, 2, 3, 4]
    assert names(thinnable(found, (), 400 * DAY, 7)) == [1, 2, 3], "counted from the newest"
    assert names(thinnable(found, (), 0, 7)) == [], "from the future, it seems"


def test_which_never_are() -> None:
    found = [
        row(0, 99, kind="start"),
        row(1, 99, pinned=True),
        row(2, 99, label="v1"),
        row(3, 99, kind="rescue"),
        row(4, 99),
        row(5, 99),
        row(6, 0),
    ]
    assert names(thinnable(found, {found[4].id}, 100 * DAY, 7)) == [5]


def test_what_was_made_on_the_way_makes_room_first() -> None:
    found = [row(1, 9), row(2, 8, kind="auto"), row(3, 7), row(4, 6, kind="tool"), row(5, 0)]
    assert names(thinnable(found, (), 100 * DAY, 0)) == [2, 4, 1, 3]


def aged(rig: Rig, monkeypatch: pytest.MonkeyPatch, ages: Iterable[int]) -> list[CheckpointRecord]:
    """Checkpoints that were made so many days ago, each with another content of target/out."""
    moment = now()
    found = []
    for age in ages:
        monkeypatch.setattr(history, "now", lambda age=age: moment - age * DAY)
        rig.save(b"target/out", NOISE(BLOCK_SIZE))
        found.append(rig.checkpoint())
    monkeypatch.undo()
    return found


def clean(rig: Rig, rules: Retention | None = KEEP_ALL) -> housekeeping.Cleaned:
    return housekeeping.clean(
        rig.engine, contextlib.nullcontext(), rules, Pace(), lambda **_: None, thorough=True
    )


def test_the_configuration_says_which(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    made = aged(rig, monkeypatch, [20, 10, 6, 0])
    assert clean(rig).thinned == [], "nothing is volatile"
    config.change(rig.store, "volatile.paths", ["target/"])
    assert clean(rig, None).thinned == [], "without a policy nothing goes"
    with Reader(rig.volume.store) as reader:
        would = housekeeping.foresee(reader, KEEP_ALL, lambda **_: None)
    done = clean(rig)
    assert names(done.thinned) == names(would.thinned) == names(made[:2])
    assert done.collected.bytes == would.collected.bytes > 2 * BLOCK_SIZE
    assert done.to_json()["thinned"][0]["id"] == made[0].id
    config.change(rig.store, "volatile.keep_days", ["1"])
    assert names(clean(rig).thinned) == names(made[2:3])
    check_verified(rig)


def test_nothing_is_looked_for_twice(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each hour of an idle workspace."""
    made = aged(rig, monkeypatch, [20, 10, 0])
    config.change(rig.store, "volatile.paths", ["target/"])
    first = clean(rig)
    phases: list[str] = []

    def again() -> housekeeping.Cleaned:
        phases.clear()
        return housekeeping.clean(
            rig.engine,
            contextlib.nullcontext(),
            KEEP_ALL,
            Pace(),
            lambda phase, **_: phases.append(phase),
            looked=first.thinning,
        )

    assert again().thinning == first.thinning
    assert phases == []
    removing.remove(rig.volume, [stored(rig, made[0])])
    rig.volume.sync()
    assert again().thinning != first.thinning
    assert "volatile" in phases


def test_off_keeps_them_as_long_as_the_checkpoint(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    aged(rig, monkeypatch, [400, 0])
    config.change(rig.store, "volatile.paths", ["target/"])
    config.change(rig.store, "volatile.keep_days", ["off"])
    assert clean(rig).thinned == []


def test_a_configuration_with_an_error_thins_nothing(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    aged(rig, monkeypatch, [400, 0])
    (rig.store / "config.toml").write_text('[volatile]\npaths = ["target"]\nkeep_days = "?"\n')
    assert clean(rig).thinned == []


def test_one_that_somebody_looks_into_is_spared(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    made = aged(rig, monkeypatch, [20, 10, 0])
    config.change(rig.store, "volatile.paths", ["target/"])
    visits = rig.volume.visits
    visits.view(visits.visit(made[0].id))
    assert names(clean(rig).thinned) == names(made[1:2])


def test_room_is_made_of_them_before_checkpoints_go(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = aged(rig, monkeypatch, [3, 2, 1, 0])
    config.change(rig.store, "volatile.paths", ["target/"])
    looks = iter([False, True, True])

    def room() -> housekeeping.Cleaned:
        return housekeeping.make_room(
            rig.engine, contextlib.nullcontext(), lambda: next(looks), Pace()
        )

    done = room()
    assert (names(done.thinned), done.removed) == (names(made[:1]), [])
    looks = iter([False, False, False, True])
    done = room()
    assert names(done.thinned) == names(made[1:3])
    assert [decision.checkpoint.epoch for decision in done.removed] == names(made[:1])


# -- the store ------------------------------------------------------------------------------------


def test_older_programs_keep_away(
    thinned: tuple[Rig, CheckpointRecord], monkeypatch: pytest.MonkeyPatch
) -> None:
    rig, _ = thinned
    assert rig.volume.store.format().incompatible & version.THINNED
    rig.close()
    known = version.KNOWN_INCOMPATIBLE & ~version.THINNED
    with monkeypatch.context() as patch:
        patch.setattr(version, "KNOWN_INCOMPATIBLE", known)
        with pytest.raises(StoreFormatError):
            open_store(rig.store, writable=True)
    rig.start()


def test_compacted(thinned: tuple[Rig, CheckpointRecord]) -> None:
    rig, one = thinned
    before = look(rig, one.epoch)
    rig.close()
    compact(rig.store, silent)
    rig.start()
    assert rig.volume.store.format().incompatible & version.THINNED
    assert look(rig, one.epoch) == before
    check_verified(rig)


def test_it_goes_with_its_checkpoint(thinned: tuple[Rig, CheckpointRecord]) -> None:
    rig, one = thinned
    removing.remove(rig.volume, [stored(rig, one)])
    rig.volume.sync()
    collect_garbage(rig)
    rig.volume.look_again()
    values = [value for _, value in rig.volume.reader.scan("extent")]
    assert records.EXTENT_THINNED not in values
    check_verified(rig)


def spoil(rig: Rig, table: str, rows: dict[bytes, bytes]) -> None:
    """Write records as nobody should."""
    rig.check = False
    store = rig.volume.store
    with store.begin(write=True) as txn:
        for key, value in rows.items():
            txn.put(key, value, db=store.tables[table])
    rig.volume.look_again()


def problems(rig: Rig) -> dict[str, tuple[str, ...]]:
    """By check, the checkpoints that are hit."""
    rig.volume.look_again()
    with Reader(rig.volume.store) as reader:
        return {p.check: p.checkpoints for p in verify_store(reader, None).problems}


def mend(rig: Rig) -> None:
    rig.close()
    mend_file(rig)


def mend_file(rig: Rig) -> None:
    """Repair a closed store, and open it."""
    done = repair(rig.store, None, dry_run=False, progress=silent)
    assert done.after.problems == [], done
    rig.start()


def test_a_checkpoint_that_does_not_say_so(thinned: tuple[Rig, CheckpointRecord]) -> None:
    rig, one = thinned
    record = msgspec.structs.replace(stored(rig, one), thinned=())
    spoil(rig, "checkpoint", {one.id.encode(): records.encode(record)})
    assert problems(rig) == {"extent-thinned": (one.id,)}
    mend(rig)
    assert stored(rig, one).thinned == ("*",)
    assert look(rig, one.epoch)[b"target/out"].content == THINNED


def test_a_checkpoint_that_says_so_in_vain(rig: Rig) -> None:
    """It has all contents; that others are thinned does not matter."""
    rig.create(b"target/out", b"first")
    one = rig.checkpoint()
    rig.save(b"target/out", b"second")
    two = rig.checkpoint()
    rig.save(b"target/out", b"third")
    rig.checkpoint()
    assert thin(rig, [one]).thinned == {one.epoch}
    record = msgspec.structs.replace(stored(rig, two), thinned=("target",))
    spoil(rig, "checkpoint", {two.id.encode(): records.encode(record)})
    assert problems(rig) == {"checkpoint-thinned": (two.id,)}
    mend(rig)
    assert stored(rig, two).thinned == ()
    assert stored(rig, one).thinned == ("target", "node_modules")
    assert contents(look(rig, one.epoch)) == {b"target/out": THINNED}
    assert contents(look(rig, two.epoch)) == {b"target/out": b"second"}


def test_a_checkpoint_whose_record_is_gone(thinned: tuple[Rig, CheckpointRecord]) -> None:
    rig, one = thinned
    rig.check = False
    store = rig.volume.store
    with store.begin(write=True) as txn:
        txn.delete(one.id.encode(), db=store.tables["checkpoint"])
    mend(rig)
    assert stored(rig, one).thinned == ("*",)


@pytest.mark.parametrize("shown_by", ["the present state", "a state in another path"])
def test_what_should_never_have_been_thinned(rig: Rig, shown_by: str) -> None:
    """It is found; what is lost is an error afterwards, and never other bytes."""
    rig.create(b"src/main", b"lost")
    one = rig.checkpoint()
    if shown_by != "the present state":
        rig.unlink(b"src/main")
    rig.checkpoint()
    rig.volume.look_again()
    record = msgspec.structs.replace(stored(rig, one), thinned=("target",))
    extents = [key for key, _ in rig.volume.reader.scan("extent")]
    bit = version.with_feature(rig.volume.store.format(), version.THINNED)
    spoil(rig, "meta", {b"format": records.encode(bit)})
    spoil(rig, "checkpoint", {one.id.encode(): records.encode(record)})
    spoil(rig, "extent", dict.fromkeys(extents, records.EXTENT_THINNED))
    assert "extent-thinned" in problems(rig)
    mend(rig)
    assert stored(rig, one).thinned == (), "it has nothing that was thinned"
    with read(rig) as workspace:
        node, pieces = read_file(workspace, workspace.point(one.id), b"src/main")
        with pytest.raises(CowfsError):
            list(pieces)
        assert node.size == 4


def test_a_store_that_does_not_say_so(thinned: tuple[Rig, CheckpointRecord]) -> None:
    rig, _ = thinned
    record = rig.volume.store.format()
    bare = version.sealed(msgspec.structs.replace(record, incompatible=0))
    spoil(rig, "meta", {b"format": records.encode(bare)})
    assert list(problems(rig)) == ["format"]
    mend(rig)
    assert rig.volume.store.format() == record


def test_the_key_of_an_extent_says_where_it_is() -> None:
    """What this module relies on when it spoils extents."""
    assert keys.extent_key(1, 2, 3) == keys.extent_prefix(1, 2) + keys.inverted(3)
    assert os.fsdecode(VOLATILE[0]) == "target"


@pytest.mark.parametrize("table", ["link", "extent"])
def test_in_a_file_with_a_damaged_page(rig: Rig, table: str) -> None:
    """Another file is made of what is sound: what was thinned there is it in that one, too. Of
    extents that went with the page nothing is known, also not that they were thinned."""
    for number in range(200):
        rig.create(b"target/f%d" % number, b"%d" % number)
    one = rig.checkpoint()
    rig.remove_tree(b"target")
    rig.checkpoint()
    rig.checkpoint()
    thin(rig, [one])
    before = look(rig, one.epoch)
    rig.close()
    assert rig.base is not None
    sample = Sample(rig.store, rig.base, {}, {})
    write(sample, a_page(sample, table, "leaf"), bytes(PAGE))
    mend_file(rig)
    rig.check = False  # what is lost is noted
    with Reader(rig.volume.store) as reader:
        values = [value for _, value in reader.scan("extent")]
    assert stored(rig, one).thinned == ("target", "node_modules")
    assert rig.volume.store.format().incompatible & version.THINNED
    assert (values.count(records.EXTENT_THINNED) == 200) == (table == "link")
    assert 0 < values.count(records.EXTENT_THINNED) <= len(values) == 200
    if table == "link":
        assert look(rig, one.epoch) == before
    with read(rig) as workspace:
        point = workspace.point(one.id)
        for number in range(200):
            with pytest.raises(CowfsError):
                list(read_file(workspace, point, b"target/f%d" % number)[1])
