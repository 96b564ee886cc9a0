"""Checkpoint, restore, undo and redo on a volume: states, counts, and what they cost."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from cowfs.errors import NothingToUndoError
from cowfs.format.records import Counts
from cowfs.service.engine import commit
from cowfs.service.selectors import all_checkpoints
from cowfs.store.group import TransactionGroup
from cowfs.types import BLOCK_SIZE
from cowfs.volume import attributes, data
from tests.support.volumes import OTHER, START, Facts, Rig

B = BLOCK_SIZE


def fill_base(base: Path) -> None:
    (base / "d" / "e").mkdir(parents=True)
    (base / "d" / "f").write_bytes(b"base" * B)
    (base / "d" / "e" / "g").write_bytes(b"deep")
    os.link(base / "d" / "f", base / "link")
    os.symlink("d/f", base / "symlink")
    os.mkfifo(base / "fifo")
    os.utime(base / "d" / "f", ns=(1_000_000_001, 2_000_000_002))


def change_everything(rig: Rig) -> None:
    rig.write(b"d/f", b"new", B - 1)
    rig.truncate(b"d/e/g", 2)
    rig.rename(b"d/e", b"e")
    rig.unlink(b"symlink")
    rig.symlink(b"elsewhere", b"symlink")
    rig.create(b"e/new", b"new")
    rig.link(b"e/new", b"new")
    rig.mkdir(b"empty")
    rig.unlink(b"fifo")
    rig.chmod(b"e", 0o700)
    rig.setxattr(b"d/f", b"user.a", b"1")
    uid, gid = OTHER
    attributes.set_attributes(rig.view, rig.at(b"link"), uid=uid, gid=gid, atime=1, mtime=2)


def ruin(rig: Rig) -> None:
    """rm -rf of everything."""
    for name in rig.ls():
        rig.remove_tree(name)


@pytest.mark.parametrize("age", ["hot", "evicted", "reopened"])
def test_every_state_comes_back_whole(open_rig: Callable[[], Rig], base: Path, age: str) -> None:
    fill_base(base)
    rig = open_rig()

    def rest() -> None:
        if age == "evicted":
            rig.volume.sync()
            rig.evict()
        if age == "reopened":
            rig.reopen()

    states: list[tuple[str, dict[bytes, Facts]]] = [(START, rig.tree())]
    for change in (change_everything, lambda r: r.save(b"d/f", b"short"), ruin):
        rest()
        change(rig)
        expected = rig.tree()
        states.append((rig.checkpoint().id, expected))
        assert rig.tree() == expected
    rig.create(b"after", b"x")
    states.append((rig.checkpoint().id, rig.tree()))
    for checkpoint, expected in [*states, *reversed(states), *states[::2]]:
        rest()
        rig.restore(checkpoint)
        assert rig.tree() == expected
    rest()
    assert rig.tree() == states[4][1]


def test_undo_and_redo_are_stacks(volume: Rig) -> None:
    contents = {}
    for content in (b"one", b"two", b"three"):
        volume.save(b"f", content)
        contents[content] = volume.checkpoint()
    volume.save(b"f", b"four")

    def shows() -> bytes:
        return volume.read(b"f")

    volume.restore(contents[b"one"])
    volume.restore(contents[b"two"])
    assert shows() == b"two"
    volume.save(b"f", b"two and more")
    volume.undo()
    assert shows() == b"one"
    volume.undo()
    assert shows() == b"four"
    with pytest.raises(NothingToUndoError):
        volume.undo()
    volume.redo()
    assert shows() == b"one"
    volume.redo()
    assert shows() == b"two and more"
    with pytest.raises(NothingToUndoError):
        volume.redo()
    volume.undo()
    volume.save(b"f", b"edited after undo")
    volume.redo()
    assert shows() == b"two and more"
    volume.undo()
    assert shows() == b"edited after undo"
    volume.reopen()
    volume.undo()
    assert shows() == b"four"
    volume.restore(contents[b"three"])
    with pytest.raises(NothingToUndoError):
        volume.redo()
    volume.undo()
    assert shows() == b"four"


def test_a_restore_keeps_the_state_before_as_a_rescue(volume: Rig) -> None:
    volume.save(b"f", b"one")
    one = volume.checkpoint()
    volume.save(b"f", b"unsaved work")
    restored = volume.restore(one)
    assert (restored.rescue.kind, restored.rescue.target) == ("rescue", one.id)
    assert restored.rescue.counts == Counts(0, 1, 0)
    assert restored.changed == 1
    volume.restore(restored.rescue)
    assert volume.read(b"f") == b"unsaved work"
    kinds = Counter(record.kind for record in all_checkpoints(volume.volume.reader))
    assert kinds == {"start": 1, "manual": 1, "rescue": 2}


def test_restoring_the_present_changes_nothing(volume: Rig) -> None:
    volume.create(b"f", b"x")
    now = volume.checkpoint()
    before = volume.tree()
    assert volume.restore(now).changed == 0
    assert volume.tree() == before


def test_what_did_not_change_is_the_same_object(volume: Rig) -> None:
    """Its inode number, times and caches are kept; nobody is told to look again."""
    volume.mkdir(b"d")
    for number in range(20):
        volume.create(b"d/%d" % number, b"x")
    then = volume.checkpoint()
    handles = [volume.open(b"d/%d" % number) for number in range(20)]
    objects = [volume.at(b"d"), *(handle.inode for handle in handles)]
    for inode in objects:
        inode.nlookup += 1  # as the kernel does that has looked it up
    volume.write(b"d/7", b"y")
    volume.restore(then)
    (told,) = volume.told
    seventh = handles[7].inode.ino
    # Its name, so that the kernel lets the inode go as soon as nobody holds it.
    assert (told.names, told.inodes) == ([(objects[0].ino, b"7")], [seventh])
    assert told.files == [seventh]
    for handle in handles:
        assert volume.view.inodes[handle.inode.ino] is handle.inode
        assert handle.read() == b"x"
        handle.close()


def test_the_kernel_is_told_of_every_name_that_changed(volume: Rig) -> None:
    volume.mkdir(b"d")
    for name in (b"d/stays", b"d/goes", b"d/moves"):
        inode = volume.create(name)
        attributes.set_attributes(volume.view, inode, ctime=1)  # the clock is a coarse one
    then = volume.checkpoint()
    for path in (b"d", b"d/stays", b"d/goes", b"d/moves"):
        volume.at(path).nlookup += 1
    d, goes, moves = (volume.at(path).ino for path in (b"d", b"d/goes", b"d/moves"))
    volume.unlink(b"d/goes")
    volume.rename(b"d/moves", b"moved")
    volume.create(b"d/comes")
    volume.restore(then)
    (told,) = volume.told
    names = {(d, b"goes"), (d, b"moves"), (d, b"comes"), (1, b"moved")}
    assert names <= set(told.names)
    assert {d, goes, moves} <= set(told.inodes)
    assert (d, b"stays") not in told.names
    assert volume.at(b"d/stays").ino not in told.inodes


def test_counts_of_a_checkpoint(volume: Rig, base: Path) -> None:
    fill_base(base)
    volume.tree()

    def counts() -> Counts:
        found = volume.view.counts()
        volume.volume.sync()
        assert volume.view.counts() == found
        volume.reopen()
        volume.tree()
        assert volume.view.counts() == found
        assert volume.checkpoint().counts == found
        assert volume.view.counts() == Counts(0, 0, 0)
        return found

    assert counts() == Counts(0, 0, 0)
    volume.create(b"new")
    volume.mkdir(b"dir")
    volume.symlink(b"x", b"sym")
    assert counts() == Counts(3, 0, 0)
    volume.write(b"new", b"x")
    volume.chmod(b"d/f", 0o600)
    volume.setxattr(b"d/f", b"user.a", b"1")
    assert counts() == Counts(0, 2, 0)
    volume.rename(b"new", b"newer")
    volume.link(b"newer", b"newest")
    assert counts() == Counts(0, 1, 0)
    volume.unlink(b"newest")
    volume.create(b"temporary", b"x")
    volume.unlink(b"temporary")
    assert counts() == Counts(0, 1, 0)
    volume.write(b"d/e/g", b"changed, then deleted")
    volume.unlink(b"d/e/g")
    volume.rmdir(b"dir")
    assert counts() == Counts(0, 0, 2)
    volume.unlink(b"link")
    assert counts() == Counts(0, 1, 0)
    volume.unlink(b"d/f")
    assert counts() == Counts(0, 0, 1)


# -- what it costs ------------------------------------------------------------------------------


def grown(before: Counter[str], after: Counter[str]) -> dict[str, int]:
    """By how many records each table grew."""
    return {table: after[table] - before[table] for table in after if after[table] != before[table]}


def test_a_checkpoint_costs_the_same_whatever_the_tree(volume: Rig) -> None:
    costs = []
    for _ in range(3):
        for _ in range(40):
            directory = b"d%d" % volume.volume.take_id()
            volume.mkdir(directory)
            for number in range(5):
                volume.create(directory + b"/%d" % number, b"x" * 100)
        before = volume.record_counts()
        volume.checkpoint("nothing changed")
        volume.checkpoint("nothing changed")
        costs.append(grown(before, volume.record_counts()))
    assert costs == [{"epoch": 2, "checkpoint": 2, "operation": 2}] * 3


def test_a_restore_costs_the_same_whatever_changed(volume: Rig) -> None:
    start = volume.checkpoint()
    costs = []
    for size in (1, 30, 300):
        for number in range(size):
            volume.create(b"%d-%d" % (size, number), b"x")
        before = volume.record_counts()
        volume.restore(start)
        costs.append(grown(before, volume.record_counts()))
    cost = {"epoch": 1, "checkpoint": 1, "operation": 1, "process": 1, "audit": 1}
    assert costs == [cost] * 3


def temporary_files(rig: Rig) -> None:
    """What git, compilers and editors do: names that come and go."""
    rig.create(b"d/temp", b"x" * 3 * B)
    rig.setxattr(b"d/temp", b"user.a", b"1")
    rig.link(b"d/temp", b"d/temp2")
    rig.rename(b"d/temp2", b"d/temp3")
    rig.mkdir(b"d/dir")
    rig.symlink(b"x", b"d/dir/s")
    rig.volume.sync()
    rig.evict()
    rig.write(b"d/temp", b"y", B)
    rig.truncate(b"d/temp", 0)
    rig.write(b"d/temp", b"z")
    rig.volume.quiesce()
    rig.unlink(b"d/dir/s")
    rig.rmdir(b"d/dir")
    rig.unlink(b"d/temp3")
    rig.volume.sync()
    rig.evict()
    rig.unlink(b"d/temp")
    rig.chmod(b"d", 0o755)


def test_temporary_files_leave_nothing_behind(volume: Rig) -> None:
    """Blocks stay until they are collected; everything else is as if they had never been."""
    volume.mkdir(b"d")
    temporary_files(volume)
    before = volume.record_counts()
    for _ in range(3):
        temporary_files(volume)
    assert grown(before, volume.record_counts()) == {}
    volume.checkpoint()
    temporary_files(volume)
    before = volume.record_counts()
    volume.checkpoint()
    temporary_files(volume)
    after = grown(before, volume.record_counts())
    # One version of the directory, whose times changed.
    assert after == {"inode": 1, "change": 1, "epoch": 1, "checkpoint": 1, "operation": 1}


def test_saving_a_file_again_and_again_leaves_one_version_an_epoch(volume: Rig) -> None:
    def save() -> None:
        volume.create(b"f.tmp", os.urandom(100))
        volume.rename(b"f.tmp", b"f")

    save()
    save()
    before = volume.record_counts()
    for number in range(20):
        save()
        if number % 3 == 0:
            volume.volume.sync()
            volume.evict()
    assert grown(before, volume.record_counts()) == {}
    volume.checkpoint()
    before = volume.record_counts()
    save()
    assert grown(before, volume.record_counts()) == {
        "inode": 3,  # the new file, the whiteout of the old one, the directory
        "dirent": 1,
        "link": 2,
        "extent": 1,
        "block": 1,
        "change": 4,
    }


def test_appending_stores_only_what_changed(volume: Rig) -> None:
    inode = volume.create(b"f", os.urandom(10 * B))
    volume.checkpoint()
    before = volume.record_counts()
    data.write(volume.view, inode, 10 * B, b"more")
    data.write(volume.view, inode, B + 5, b"changed")
    after = grown(before, volume.record_counts())
    assert after == {"inode": 1, "extent": 2, "block": 2, "change": 1}


# -- the store's own history --------------------------------------------------------------------


def test_epochs_of_a_line(volume: Rig) -> None:
    one = volume.checkpoint()
    two = volume.checkpoint()
    volume.restore(one)
    three = volume.checkpoint()
    lineage = volume.view.lineage
    assert [lineage.visible(r.epoch) for r in (one, two, three)] == [True, False, True]
    volume.reopen()
    assert volume.view.lineage.ranges == lineage.ranges


def test_numbers_are_never_used_twice(volume: Rig) -> None:
    seen: set[int] = set()
    for _ in range(3):
        for _ in range(5):
            ino = volume.create(b"f").ino
            assert ino not in seen
            seen.add(ino)
            volume.unlink(b"f")
        volume.reopen()


def test_a_copied_store_is_a_store(volume: Rig, tmp_path: Path, base: Path) -> None:
    volume.create(b"f", b"x")
    volume.checkpoint("one", label="first")
    tree = volume.tree()
    volume.close()
    shutil.copytree(volume.store, tmp_path / "copy")
    volume.start()
    copy = Rig(tmp_path / "copy", base)
    assert copy.tree() == tree
    copy.save(b"f", b"y")
    copy.restore("first")
    assert copy.tree() == tree
    copy.finish()
    assert volume.tree() == tree


def test_a_commit_does_not_wait_for_what_comes_meanwhile(
    volume: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy mount that has no end, and a checkpoint waits for whoever commits."""
    writer = volume.volume.writer
    wait = writer.wait

    def busy(group: TransactionGroup) -> None:
        wait(group)
        assert not volume.exists(b"later"), "it waits for a second group"
        volume.create(b"later")

    monkeypatch.setattr(writer, "wait", busy)
    volume.create(b"first")
    commit(volume.engine)
    assert volume.volume.dirty
    monkeypatch.undo()
