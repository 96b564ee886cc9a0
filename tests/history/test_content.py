"""Trees of the past: complete where the base was never looked into, honest where it changed."""

from __future__ import annotations

import os
import stat
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from cowfs.errors import ContentLostError, NotARegularFileError, UnknownPathError
from cowfs.format import keys
from cowfs.service.content import Tree, same_content
from cowfs.service.export import read_file
from cowfs.service.restore import restore
from cowfs.volume import sealing
from tests.history.states import history, live_state, native_state, replayed, tree_state
from tests.support.volumes import AUTHOR, Rig

OpenRig = Callable[[], Rig]


@pytest.fixture
def rig(open_rig: OpenRig, base: Path) -> Rig:
    (base / "d/sub").mkdir(parents=True)
    (base / "d/sub/deep").write_text("deep\n" * 30000)
    (base / "d/one").write_text("one\n")
    (base / "empty").touch()
    (base / "link").symlink_to("d/one")
    (base / "dangling").symlink_to("nowhere")
    os.mkfifo(base / "pipe", 0o640)
    (base / os.fsdecode(b"caf\xe9")).write_bytes(bytes(range(256)) * 600)
    os.setxattr(base / "d/one", b"user.note", b"\0\xff")
    (base / "d/sub").chmod(0o2750)
    return open_rig()


def test_a_base_that_nobody_looked_into_is_complete(rig: Rig) -> None:
    assert rig.base is not None
    with history(rig) as workspace:
        point = workspace.point("@")
        assert tree_state(workspace, point) == native_state(rig.base)
        tree = Tree(workspace, point)
        below = tree.lookup(b"d/sub/deep")
        assert below.ino == 0
        st = os.stat(rig.base / "d/sub/deep")
        assert (below.mtime, below.atime, below.size) == (st.st_mtime_ns, st.st_atime_ns, 150000)
        assert tree.root().ino == 1


def test_after_looking_and_changing_it_is_what_the_volume_shows(rig: Rig) -> None:
    rig.ls(b"d")
    rig.write(b"d/one", b"ONE!", 100000)
    a = rig.checkpoint()
    rig.rename(b"d/sub", b"moved")
    rig.truncate(b"d/one", 70000)
    rig.close()
    with replayed(rig, rig.store.parent / "copy") as other:
        now = live_state(other)[0]
        other.restore(a)
        then = live_state(other)[0]
    rig.start()
    with history(rig) as workspace:
        assert tree_state(workspace, workspace.point("@")) == now
        assert tree_state(workspace, workspace.point(a.id)) == then
        assert Tree(workspace, workspace.point("@")).lookup(b"moved/deep").ino == 0


def test_walk_is_sorted_and_parents_come_first(rig: Rig) -> None:
    with history(rig) as workspace:
        found = [node.path for node in Tree(workspace, workspace.point("@")).walk()]
    assert found == [
        b"caf\xe9",
        b"d",
        b"d/one",
        b"d/sub",
        b"d/sub/deep",
        b"dangling",
        b"empty",
        b"link",
        b"pipe",
    ]


def test_reading_one_file(rig: Rig) -> None:
    with history(rig) as workspace:
        point = workspace.point("@")
        node, content = read_file(workspace, point, b"/d//sub/./deep/")
        assert node.path == b"d/sub/deep"
        assert b"".join(content) == b"deep\n" * 30000
        _, content = read_file(workspace, point, b"link")
        assert b"".join(content) == b"d/one"
        _, content = read_file(workspace, point, b"empty")
        assert b"".join(content) == b""
        for path, kind in ((b"d", "directory"), (b"", "directory"), (b"pipe", "fifo")):
            with pytest.raises(NotARegularFileError) as caught:
                read_file(workspace, point, path)
            assert caught.value.details["kind"] == kind
        for path in (b"no", b"d/no", b"empty/x", b"link/x", b"d/../d/one", b"x" * 300, b"a\0"):
            with pytest.raises(UnknownPathError):
                read_file(workspace, point, path)


def test_base_file_that_changed_outside_is_lost_not_wrong(rig: Rig) -> None:
    assert rig.base is not None
    rig.read(b"d/one")
    a = rig.checkpoint()
    rig.close()
    (rig.base / "d/one").write_text("other")
    rig.start()
    with history(rig) as workspace:
        node, content = read_file(workspace, workspace.point(a.id), b"d/one")
        assert node.size == 4
        with pytest.raises(ContentLostError) as caught:
            next(content)
        assert caught.value.details["path"] == "d/one"
    rig.ls(b"d")
    with history(rig) as workspace:
        _, content = read_file(workspace, workspace.point(a.id), b"d/one")
        with pytest.raises(ContentLostError):
            next(content)
        _, content = read_file(workspace, workspace.point("@"), b"d/one")
        assert b"".join(content) == b"other"


def test_what_was_sealed_outlives_the_base(rig: Rig) -> None:
    assert rig.base is not None
    inode = rig.at(b"d/sub/deep")
    a = rig.checkpoint()
    sealing.seal(rig.view, inode.content)
    rig.truncate(b"d/sub/deep", 7)
    rig.truncate(b"d/sub/deep", 140000)
    rig.close()
    (rig.base / "d/sub/deep").unlink()
    rig.start()
    with history(rig) as workspace:
        _, content = read_file(workspace, workspace.point(a.id), b"d/sub/deep")
        assert b"".join(content) == b"deep\n" * 30000
        _, content = read_file(workspace, workspace.point("@"), b"d/sub/deep")
        assert b"".join(content) == b"deep\nde" + bytes(140000 - 7)


def test_base_directory_that_is_gone_is_lost_alone(rig: Rig) -> None:
    assert rig.base is not None
    rig.ls()
    a = rig.checkpoint()
    rig.close()
    for path in ("d/sub/deep", "d/one"):
        (rig.base / path).unlink()
    (rig.base / "d/sub").rmdir()
    (rig.base / "d").rmdir()
    rig.start()
    with history(rig) as workspace:
        tree = Tree(workspace, workspace.point(a.id))
        with pytest.raises(ContentLostError):
            list(tree.walk())
        failed: list[bytes] = []
        found = [n.path for n in tree.walk(failed=lambda path, error: failed.append(path))]
        assert b"empty" in found
        assert failed == [b"d"]


def test_without_a_base_directory_the_store_is_still_readable(rig: Rig) -> None:
    from cowfs.service.workspace import reading

    rig.save(b"d/one", b"stored")
    rig.close()
    with reading(rig.store, None) as workspace:
        point = workspace.point("@")
        assert b"".join(read_file(workspace, point, b"d/one")[1]) == b"stored"
        with pytest.raises(ContentLostError):
            Tree(workspace, point).lookup(b"d/sub/deep")
        with pytest.raises(ContentLostError):
            b"".join(read_file(workspace, point, b"caf\xe9")[1])
    rig.start()


def test_holes_are_known(open_rig: OpenRig, base: Path) -> None:
    with open(base / "sparse", "wb") as file:
        file.truncate(1 << 40)
        file.seek(1 << 39)
        file.write(b"middle")
    rig = open_rig()
    rig.create(b"own")
    rig.truncate(b"own", 1 << 40)
    rig.write(b"own", b"far", (1 << 38) + 1)
    rig.write(b"sparse", b"near", 70000)
    with history(rig) as workspace:
        tree = Tree(workspace, workspace.point("@"))
        pieces = [(at, data.strip(b"\0")) for at, data in tree.lookup(b"own").pieces()]
        assert pieces == [(1 << 38, b"far")]
        pieces = [(at, data.strip(b"\0")) for at, data in tree.lookup(b"sparse").pieces()]
        assert pieces == [(65536, b"near"), (1 << 39, b"middle")]


def test_a_large_file_is_not_held_in_memory(rig: Rig) -> None:
    rig.create(b"large")
    for number in range(512):
        rig.write(b"large", b"%d" % number, number * 65536 + 65000)
    rig.write(b"large", os.urandom(20 << 20))
    with history(rig) as workspace:
        _, content = read_file(workspace, workspace.point("@"), b"large")
        tracemalloc.start()
        try:
            size = sum(map(len, content))
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert size == 511 * 65536 + 65003
    assert peak < 2 << 20


def test_hard_links_of_the_base_keep_one_identity(open_rig: OpenRig, base: Path) -> None:
    """Case 24, with a name in a directory that nobody looked into."""
    (base / "seen").mkdir()
    (base / "unseen").mkdir()
    (base / "seen/a").write_text("shared\n")
    os.link(base / "seen/a", base / "unseen/b")
    (base / "unseen/c").write_text("both unseen\n")
    os.link(base / "unseen/c", base / "unseen/d")
    rig = open_rig()
    rig.write(b"seen/a", b"CHANGED")
    with history(rig) as workspace:
        tree = Tree(workspace, workspace.point("@"))
        a, b = tree.lookup(b"seen/a"), tree.lookup(b"unseen/b")
        assert a.identity == b.identity
        assert b.read() == b"CHANGED"
        c, d = tree.lookup(b"unseen/c"), tree.lookup(b"unseen/d")
        assert c.identity == d.identity
        assert c.identity != a.identity
    assert rig.read(b"unseen/b") == b"CHANGED"


def test_inode_number_that_the_base_used_again_is_another_file(
    open_rig: OpenRig, base: Path
) -> None:
    (base / "seen").mkdir()
    (base / "unseen").mkdir()
    (base / "seen/a").write_text("old\n")
    os.link(base / "seen/a", base / "seen/b")
    (base / "unseen/x").write_text("another file\n")
    os.link(base / "unseen/x", base / "unseen/y")
    rig = open_rig()
    a = rig.at(b"seen/a").ino
    st = os.stat(base / "unseen/x")
    rig.volume.extra.put("hardlink", keys.hardlink_key(st.st_dev, st.st_ino), keys.pack_id(a))
    with history(rig) as workspace:
        tree = Tree(workspace, workspace.point("@"))
        assert tree.lookup(b"unseen/x").read() == b"another file\n"
        assert tree.lookup(b"unseen/x").identity == tree.lookup(b"unseen/y").identity


def test_blocks_given_back_to_the_base(open_rig: OpenRig, base: Path) -> None:
    """A restore of one path, of a base file that is sealed, and of one that is not."""
    content = os.urandom(200000)
    (base / "sealed").write_bytes(content)
    (base / "plain").write_bytes(content)
    rig = open_rig()
    a = rig.checkpoint()
    for name in (b"sealed", b"plain"):
        rig.write(name, b"one", 70000)
        rig.checkpoint()
        rig.write(name, b"two", 70000)
        rig.write(name, b"two", 140000)
    sealing.seal(rig.view, rig.at(b"sealed").content)
    restore(rig.engine, AUTHOR, a.id, paths=[b"sealed", b"plain"])
    with history(rig) as workspace:
        tree = Tree(workspace, workspace.point("@"))
        for name in (b"sealed", b"plain"):
            assert tree.lookup(name).read() == content
        rescue = Tree(workspace, workspace.point("@~1"))
        changed = bytearray(content)
        changed[70000:70003] = changed[140000:140003] = b"two"
        for name in (b"sealed", b"plain"):
            assert rescue.lookup(name).read() == changed
            assert not same_content(rescue.lookup(name), tree.lookup(name))
        first = Tree(workspace, workspace.point(a.id))
        assert all(same_content(first.lookup(n), tree.lookup(n)) for n in (b"sealed", b"plain"))


def test_types_of_special_files(rig: Rig) -> None:
    rig.create(b"socket", mode=stat.S_IFSOCK | 0o600)
    rig.create(b"disk", mode=stat.S_IFBLK | 0o660, rdev=os.makedev(8, 1))
    with history(rig) as workspace:
        tree = Tree(workspace, workspace.point("@"))
        assert [tree.lookup(p).kind for p in (b"socket", b"disk", b"pipe", b"link", b"d")] == [
            "socket",
            "block device",
            "fifo",
            "symlink",
            "directory",
        ]
