"""Open files and directories through unlink, rename, checkpoint and restore (contract 3)."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from cowfs.types import BLOCK_SIZE
from cowfs.volume import attributes, namespace
from cowfs.volume.namespace import RENAME_EXCHANGE
from tests.support.volumes import FILE, Rig, errno_of

B = BLOCK_SIZE


def sync(rig: Rig) -> None:
    rig.volume.sync()
    rig.evict()


# -- unlinked open files ------------------------------------------------------------------------


def test_an_unlinked_open_file_is_a_whole_file(volume: Rig) -> None:
    volume.create(b"f", b"a" * B + b"tail")
    volume.setxattr(b"f", b"user.a", b"1")
    sync(volume)
    handle = volume.open(b"f")
    volume.unlink(b"f")
    for _ in range(3):
        assert handle.inode.nlink == 0
        assert handle.read() == b"a" * B + b"tail"
        assert attributes.xattrs(volume.view, handle.inode) == {b"user.a": b"1"}
        volume.volume.sync()
    handle.write(2, b"XY")
    handle.write(3 * B, b"end")
    handle.truncate(3 * B + 1)
    attributes.set_attributes(volume.view, handle.inode, mode=0o600)
    attributes.set_xattr(volume.view, handle.inode, b"user.b", b"2")
    volume.checkpoint()
    expected = b"aaXY" + b"a" * (B - 4) + b"tail" + bytes(2 * B - 4) + b"e"
    assert handle.read() == expected
    assert handle.inode.mode & 0o7777 == 0o600
    assert attributes.xattrs(volume.view, handle.inode) == {b"user.a": b"1", b"user.b": b"2"}
    assert volume.ls() == []
    handle.close()


def test_an_unlinked_open_base_file(volume: Rig, base: Path) -> None:
    (base / "f").write_bytes(b"base" * B)
    handle = volume.open(b"f")
    volume.unlink(b"f")
    sync(volume)
    assert handle.read() == b"base" * B
    handle.write(1, b"!")
    sync(volume)
    assert handle.read(0, 8) == b"b!sebase"
    handle.close()


def test_one_of_several_links_goes_while_open(volume: Rig) -> None:
    volume.create(b"f", b"one")
    volume.link(b"f", b"g")
    handle = volume.open(b"f")
    volume.unlink(b"f")
    handle.write(0, b"two")
    assert (handle.inode.nlink, volume.read(b"g")) == (1, b"two")
    handle.close()
    volume.reopen()
    assert volume.read(b"g") == b"two"


def test_the_last_of_several_handles_lets_go(volume: Rig) -> None:
    volume.create(b"f")
    volume.unlink(b"f")
    before = volume.record_counts()
    volume.create(b"f", b"x" * 100)
    one, two = volume.open(b"f"), volume.open(b"f")
    volume.unlink(b"f")
    volume.volume.sync()
    one.close()
    two.write(0, b"y")
    volume.volume.sync()
    assert two.read(0, 2) == b"yx"
    ino = two.inode.ino
    two.close()
    volume.volume.sync()
    assert errno_of(volume.view.inode, ino) == errno.ESTALE
    left = volume.record_counts()
    left.subtract(before)
    assert {table: n for table, n in left.items() if n and table != "block"} == {}


# -- through a restore --------------------------------------------------------------------------


def test_a_handle_on_a_changed_file_reads_what_was_restored(volume: Rig) -> None:
    volume.create(b"f", b"before" + bytes(2 * B))
    then = volume.checkpoint()
    handle = volume.open(b"f")
    handle.write(0, b"AFTER!")
    handle.truncate(B)
    volume.restore(then)
    assert handle.read() == b"before" + bytes(2 * B)
    handle.write(0, b"later ")
    assert volume.read(b"f")[:6] == b"later "
    handle.close()
    volume.reopen()
    assert volume.read(b"f") == b"later " + bytes(2 * B)


def test_a_handle_on_a_file_that_was_emptied(volume: Rig) -> None:
    volume.create(b"f", b"before")
    then = volume.checkpoint()
    handle = volume.open(b"f")
    volume.save(b"f", b"a new content")
    volume.restore(then)
    assert handle.read() == b"before"
    volume.undo()
    assert handle.read() == b"a new content"
    handle.close()


def test_a_handle_on_a_file_that_the_restored_state_has_not(volume: Rig) -> None:
    then = volume.checkpoint()
    volume.create(b"new", b"written later")
    volume.setxattr(b"new", b"user.a", b"1")
    handle = volume.open(b"new")
    sync(volume)
    volume.restore(then)
    assert volume.ls() == []
    assert handle.inode.nlink == 0
    assert handle.read() == b"written later"
    assert attributes.xattrs(volume.view, handle.inode) == {b"user.a": b"1"}
    handle.write(0, b"W")
    handle.write(B, b"far")
    sync(volume)
    assert handle.read() == b"Written later" + bytes(B - 13) + b"far"
    assert errno_of(namespace.link, volume.view, handle.inode.ino, 1, b"back") == errno.ENOENT
    volume.checkpoint()
    handle.close()
    volume.reopen()
    assert volume.ls() == []


def test_what_was_written_to_a_stranded_file_never_enters_a_tree(volume: Rig) -> None:
    then = volume.checkpoint()
    volume.create(b"new", b"rescued")
    handle = volume.open(b"new")
    volume.restore(then)
    handle.write(0, b"NEVER!!")
    sync(volume)
    volume.undo()
    assert volume.read(b"new") == b"rescued"
    assert handle.read() == b"rescued"
    handle.write(0, b"present")
    assert volume.read(b"new") == b"present"
    handle.close()
    volume.reopen()
    assert volume.read(b"new") == b"present"
    volume.redo()
    volume.undo()
    assert volume.read(b"new") == b"present"


def test_a_deleted_file_comes_back_to_its_handle(volume: Rig) -> None:
    volume.create(b"f", b"before")
    then = volume.checkpoint()
    handle = volume.open(b"f")
    volume.unlink(b"f")
    handle.write(0, b"nowhere")
    sync(volume)
    volume.restore(then)
    assert handle.read() == b"before"
    assert handle.inode.nlink == 1
    assert volume.at(b"f") is handle.inode
    handle.close()


def test_writes_after_a_file_came_back_are_kept(volume: Rig) -> None:
    """What it wrote without a name is garbage, what it writes with its name again is not."""
    volume.create(b"f", b"before")
    then = volume.checkpoint()
    handle = volume.open(b"f")
    volume.unlink(b"f")
    handle.write(0, b"garbage")
    volume.restore(then)
    handle.write(0, b"later!")
    sync(volume)
    assert volume.read(b"f") == b"later!"
    handle.close()
    volume.reopen()
    assert volume.read(b"f") == b"later!"


def test_a_handle_follows_restores_to_and_fro(volume: Rig) -> None:
    start = volume.checkpoint()
    volume.create(b"f", b"one")
    one = volume.checkpoint()
    handle = volume.open(b"f")
    handle.write(0, b"two")
    two = volume.checkpoint()
    volume.unlink(b"f")
    gone = volume.checkpoint()
    content = b"two"
    for target, restored in [(one, b"one"), (start, None), (two, b"two"), (gone, None)] * 2:
        volume.restore(target)
        content = restored or content
        assert handle.read() == content
        assert handle.inode.nlink == (1 if restored else 0)
        handle.write(1, b"-")
        content = content[:1] + b"-" + content[2:]
        assert handle.read() == content
        sync(volume)
        assert handle.read() == content
        if restored:
            assert volume.read(b"f") == content
        else:
            assert volume.ls() == []
    handle.close()
    for target, content in [(one, b"one"), (two, b"two")]:
        volume.restore(target)
        assert volume.read(b"f") == content
    volume.restore(gone)
    assert volume.ls() == []


def test_a_handle_on_a_base_file(volume: Rig, base: Path) -> None:
    (base / "f").write_bytes(b"base" * B)
    handle = volume.open(b"f")
    start = volume.checkpoint()
    handle.write(0, b"MINE")
    volume.unlink(b"f")
    volume.restore(start)
    assert handle.read() == b"base" * B
    volume.undo()
    assert handle.inode.nlink == 0, "in that state it was removed"
    assert handle.read() == b"base" * B
    handle.close()


def test_a_renamed_file_goes_back_with_its_handle(volume: Rig) -> None:
    volume.mkdir(b"d")
    volume.create(b"f", b"f")
    volume.create(b"g", b"g")
    then = volume.checkpoint()
    f, g = volume.open(b"f"), volume.open(b"g")
    volume.rename(b"f", b"g", RENAME_EXCHANGE)
    volume.rename(b"g", b"d/g")
    volume.restore(then)
    assert volume.at(b"f") is f.inode
    assert volume.at(b"g") is g.inode
    f.write(0, b"F")
    assert (volume.read(b"f"), volume.read(b"g"), volume.ls(b"d")) == (b"F", b"g", [])
    f.close()
    g.close()


# -- directories --------------------------------------------------------------------------------


def test_an_open_directory_shows_what_was_restored(volume: Rig) -> None:
    volume.mkdir(b"d")
    volume.create(b"d/old")
    then = volume.checkpoint()
    handle = volume.open(b"d")
    volume.create(b"d/new")
    volume.unlink(b"d/old")
    volume.restore(then)
    assert [name for name, _ in namespace.entries(volume.view, handle.inode.ino)] == [b"old"]
    handle.close()


def test_an_open_directory_that_the_restored_state_has_not(volume: Rig) -> None:
    then = volume.checkpoint()
    volume.mkdir(b"d")
    volume.create(b"d/f")
    handle = volume.open(b"d")
    volume.restore(then)
    ino = handle.inode.ino
    assert namespace.entries(volume.view, ino) == []
    assert errno_of(namespace.create, volume.view, ino, b"x", FILE, 0, 0) == errno.ENOENT
    volume.undo()
    assert [name for name, _ in namespace.entries(volume.view, ino)] == [b"f"]
    namespace.create(volume.view, ino, b"x", FILE, 0, 0)
    assert volume.ls(b"d") == [b"f", b"x"]
    handle.close()


def test_a_moved_open_directory_knows_its_restored_place(volume: Rig) -> None:
    for path in (b"a", b"b", b"a/d"):
        volume.mkdir(path)
    then = volume.checkpoint()
    d, a, b = volume.open(b"a/d"), volume.open(b"a"), volume.open(b"b")
    volume.rename(b"a/d", b"b/d")
    volume.restore(then)
    assert volume.view.parent_of(d.inode) == a.inode.ino
    volume.rename(b"b", b"a/d/b")
    assert errno_of(volume.rename, b"a", b"a/d/b/a") == errno.EINVAL
    volume.undo()
    assert volume.view.parent_of(d.inode) == b.inode.ino
    volume.rename(b"a", b"b/d/a")
    for handle in (d, a, b):
        handle.close()


# -- crashes ------------------------------------------------------------------------------------


def scenario(rig: Rig, how: str, end: str, *, hold: bool) -> dict[str, int]:
    """A file loses its name, open (`hold`) or not, and the volume ends. Returns what is left."""
    start = rig.checkpoint()
    rig.create(b"f", b"x" * (B + 1))
    then = rig.checkpoint()
    handle = rig.open(b"f") if hold else None

    def write(content: bytes) -> None:
        if handle is not None:
            handle.write(0, content)
            rig.volume.sync()

    if how == "unlinked":
        rig.unlink(b"f")
    else:
        rig.restore(start)
    write(b"garbage")
    if how == "stranded again":
        rig.restore(then)
        rig.restore(start)
        write(b"more of it")
    if how == "unlinked again":
        rig.restore(then)
        rig.unlink(b"f")
    write(b"never to be seen" * B)
    if handle is not None:
        assert handle.read()[:16] == b"never to be seen"
    rig.volume.sync()
    getattr(rig, end)()
    rig.start()
    counts = rig.record_counts()
    assert rig.ls() == []
    rig.restore(then)
    assert rig.read(b"f") == b"x" * (B + 1)
    return {table: n for table, n in counts.items() if table != "block"}


@pytest.mark.parametrize("how", ["unlinked", "stranded", "stranded again", "unlinked again"])
@pytest.mark.parametrize("end", ["close", "crash"])
def test_files_without_a_name_are_gone_at_the_next_start(
    open_rig: Callable[[], Rig], how: str, end: str
) -> None:
    held = scenario(open_rig(), how, end, hold=True)
    assert held["orphan"] == 0
    assert held == scenario(open_rig(), how, end, hold=False)
