"""Lazy import of the base directory: everything a directory can hold, seen when it is asked for."""

from __future__ import annotations

import errno
import os
import shutil
import socket
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from cowfs.types import BLOCK_SIZE
from tests.support.listing import listing
from tests.support.volumes import START, Facts, Rig, errno_of

B = BLOCK_SIZE
root_only = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make these")


def as_seen(rig: Rig) -> dict[str, tuple[object, ...]]:
    """What the volume shows, comparable with `as_listed`."""
    return {
        os.fsdecode(path) or ".": _comparable(facts, dict(facts.xattrs))
        for path, facts in rig.tree().items()
    }


def _comparable(facts: Facts, xattrs: dict[bytes, bytes]) -> tuple[object, ...]:
    is_dir = stat.S_ISDIR(facts.mode)
    return (
        facts.mode,
        facts.uid,
        facts.gid,
        facts.rdev,
        0 if is_dir else facts.size,
        facts.mtime,
        facts.nlink,
        sorted((name, value) for name, value in xattrs.items() if name != b"security.selinux"),
    )


def as_listed(base: Path) -> dict[str, tuple[object, ...]]:
    """What the base directory shows."""
    out: dict[str, tuple[object, ...]] = {}
    for path, entry in listing(base).items():
        st = os.lstat(base / path)
        is_dir = stat.S_ISDIR(st.st_mode)
        out[path] = (
            st.st_mode,
            st.st_uid,
            st.st_gid,
            st.st_rdev,
            0 if is_dir else st.st_size,
            st.st_mtime_ns,
            2 + sum(child.is_dir(follow_symlinks=False) for child in os.scandir(base / path))
            if is_dir
            else st.st_nlink,
            sorted((os.fsencode(name), value) for name, value in entry.xattrs),
        )
    return out


def rich(base: Path) -> None:
    """A directory with one of everything that an ordinary user can make."""
    (base / "d" / "e").mkdir(parents=True)
    (base / "d" / "big").write_bytes(os.urandom(2 * B + 77))
    (base / "d" / "e" / "small").write_text("small")
    (base / "d" / "empty").touch()
    (base / "d" / "empty").chmod(0o4755)
    os.link(base / "d" / "big", base / "hard")
    os.symlink("d/big", base / "symlink")
    os.symlink("no\udcffwhere", base / "dangling")
    os.mkfifo(base / "fifo", 0o600)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(base / "socket"))
    (base / ("n" * 255)).write_text("long name")
    (base / "\udcff\udc80 not UTF-8\n").write_text("odd name")
    (base / "sticky").mkdir()
    (base / "sticky").chmod(0o1777)
    for path in ("d/e/small", "d", "symlink"):
        os.utime(base / path, ns=(1_234_567_891, -98_765_432_101), follow_symlinks=False)
    os.setxattr(base / "d" / "big", "user.name", b"value\0\xff")
    os.setxattr(base / "d" / "e", "user.of a directory", b"")


def test_a_base_looks_as_it_is(open_rig: Callable[[], Rig], base: Path) -> None:
    rich(base)
    rig = open_rig()
    assert as_seen(rig) == as_listed(base)
    tree = rig.tree()
    for path, facts in tree.items():
        place = os.path.join(os.fsencode(base), path)
        if stat.S_ISREG(facts.mode):
            assert facts.content == Path(os.fsdecode(place)).read_bytes()
        elif stat.S_ISLNK(facts.mode):
            assert facts.content == os.readlink(place)
    assert tree[b"hard"].ino == tree[b"d/big"].ino
    rig.reopen()
    assert rig.tree() == tree
    assert rig.problems() == []
    assert rig.view.counts().created == 0


@root_only
def test_what_only_root_can_make(open_rig: Callable[[], Rig], base: Path) -> None:
    os.mknod(base / "null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    os.mknod(base / "loop", stat.S_IFBLK | 0o660, os.makedev(7, 99))
    (base / "owned").write_text("x")
    os.chown(base / "owned", 12345, 54321)
    os.chmod(base / "owned", 0o6755)
    capability = bytes.fromhex("0100000200200000000000000000000000000000")
    os.setxattr(base / "owned", "security.capability", capability)
    os.setxattr(base / "owned", "trusted.x", b"1")
    rig = open_rig()
    assert as_seen(rig) == as_listed(base)
    assert rig.xattrs(b"owned")[b"security.capability"] == capability


def test_only_what_is_asked_for_is_listed(open_rig: Callable[[], Rig], base: Path) -> None:
    for name in ("a", "b"):
        (base / name / "sub").mkdir(parents=True)
        (base / name / "f").write_text(name)
    rig = open_rig()
    assert rig.volume.importer.directories == 0
    assert rig.read(b"a/f") == b"a"
    assert rig.volume.importer.directories == 2
    assert rig.exists(b"b")
    assert rig.volume.importer.directories == 2
    (base / "b" / "new").write_text("made before anybody looked")
    assert rig.ls(b"b") == [b"f", b"new", b"sub"]
    assert rig.problems() == []
    rig.reopen()
    assert rig.ls(b"b") == [b"f", b"new", b"sub"]
    assert rig.volume.importer.directories == 0


def test_an_import_is_older_than_every_checkpoint(open_rig: Callable[[], Rig], base: Path) -> None:
    (base / "d").mkdir()
    (base / "d" / "f").write_text("f")
    rig = open_rig()
    rig.create(b"new")
    first = rig.checkpoint()
    rig.rename(b"d", b"moved")  # not looked into yet
    second = rig.checkpoint()
    assert rig.read(b"moved/f") == b"f"
    rig.restore(first)
    assert (rig.ls(), rig.read(b"d/f")) == ([b"d", b"new"], b"f")
    rig.restore(START)
    assert (rig.ls(), rig.read(b"d/f")) == ([b"d"], b"f")
    rig.restore(second)
    assert (rig.ls(), rig.read(b"moved/f")) == ([b"moved", b"new"], b"f")
    assert rig.checkpoint().counts.created == 0


def test_a_moved_directory_is_found_in_the_base(open_rig: Callable[[], Rig], base: Path) -> None:
    (base / "a" / "b" / "c").mkdir(parents=True)
    (base / "a" / "b" / "c" / "f").write_bytes(b"deep" * B)
    rig = open_rig()
    rig.rename(b"a/b", b"b")
    rig.rename(b"a", b"b/a")
    rig.reopen()
    assert rig.ls(b"b") == [b"a", b"c"]
    rig.rename(b"b/c", b"b/a/c")
    rig.reopen()
    assert rig.read(b"b/a/c/f") == b"deep" * B
    assert rig.ls(b"b/a") == [b"c"]
    rig.remove_tree(b"b")
    rig.reopen()
    assert rig.ls() == []
    rig.restore(START)
    assert rig.read(b"a/b/c/f") == b"deep" * B


def test_a_removed_and_remade_directory_is_empty(open_rig: Callable[[], Rig], base: Path) -> None:
    (base / "d").mkdir()
    (base / "d" / "f").write_text("f")
    rig = open_rig()
    rig.remove_tree(b"d")
    rig.mkdir(b"d")
    rig.reopen()
    assert rig.ls(b"d") == []
    rig.create(b"d/f", b"mine")
    rig.reopen()
    assert rig.read(b"d/f") == b"mine"


# -- hard links ---------------------------------------------------------------------------------


def test_hard_links_are_one_file(open_rig: Callable[[], Rig], base: Path) -> None:
    for name in ("a", "b", "c"):
        (base / name).mkdir()
    (base / "a" / "f").write_bytes(b"shared" * B)
    os.link(base / "a" / "f", base / "b" / "f")
    os.link(base / "a" / "f", base / "c" / "f")
    rig = open_rig()
    rig.write(b"a/f", b"WRITTEN")
    rig.reopen()  # the other names were not looked at in this life
    assert rig.read(b"b/f") == b"WRITTEN" + (b"shared" * B)[7:]
    assert rig.at(b"a/f").ino == rig.at(b"b/f").ino
    rig.write(b"b/f", b"again")
    rig.reopen()
    assert rig.read(b"a/f")[:7] == b"againEN"
    assert rig.at(b"c/f").ino == rig.at(b"a/f").ino
    assert {rig.at(name + b"/f").nlink for name in (b"a", b"b", b"c")} == {3}


def test_a_removed_link_leaves_the_others(open_rig: Callable[[], Rig], base: Path) -> None:
    (base / "a").mkdir()
    (base / "a" / "f").write_bytes(b"shared")
    os.link(base / "a" / "f", base / "g")
    rig = open_rig()
    rig.unlink(b"g")
    rig.reopen()
    assert rig.read(b"a/f") == b"shared"
    assert rig.at(b"a/f").nlink == 1
    rig.restore(START)
    assert rig.at(b"a/f").ino == rig.at(b"g").ino
    assert rig.at(b"g").nlink == 2


def test_a_link_from_outside_the_base(open_rig: Callable[[], Rig], base: Path) -> None:
    (base.parent / "outside").write_text("x")
    os.link(base.parent / "outside", base / "f")
    rig = open_rig()
    assert (rig.read(b"f"), rig.at(b"f").nlink) == (b"x", 2)
    rig.unlink(b"f")
    assert rig.ls() == []
    rig.reopen()
    assert rig.ls() == []
    rig.restore(START)
    assert rig.read(b"f") == b"x"


def test_special_files_can_have_several_links(open_rig: Callable[[], Rig], base: Path) -> None:
    os.mkfifo(base / "fifo")
    os.link(base / "fifo", base / "fifo2")
    os.symlink("target", base / "symlink")
    os.link(base / "symlink", base / "symlink2", follow_symlinks=False)
    rig = open_rig()
    for one, two in ((b"fifo", b"fifo2"), (b"symlink", b"symlink2")):
        assert rig.at(one).ino == rig.at(two).ino
        assert rig.at(one).nlink == 2
        rig.unlink(two)
        assert rig.at(one).nlink == 1
    rig.reopen()
    assert rig.ls() == [b"fifo", b"symlink"]


# -- size ---------------------------------------------------------------------------------------


def test_a_huge_directory(open_rig: Callable[[], Rig], base: Path) -> None:
    huge = base / "huge"
    huge.mkdir()
    (huge / "0").write_text("0")
    for number in range(1, 5000):
        os.mkdir(huge / f"{number}") if number % 10 == 0 else (huge / f"{number}").touch()
    rig = open_rig()
    wanted = sorted(b"%d" % number for number in range(5000))
    assert rig.ls(b"huge") == wanted
    assert rig.at(b"huge").nlink == 2 + 499
    rig.unlink(b"huge/4999")
    rig.create(b"huge/new")
    rig.reopen()
    assert rig.ls(b"huge") == sorted({*wanted, b"new"} - {b"4999"})
    rig.restore(START)
    assert rig.ls(b"huge") == wanted


def test_a_deep_tree(open_rig: Callable[[], Rig], base: Path) -> None:
    """Deeper than PATH_MAX: each directory is reached from the one above."""
    name, depth = "d" * 100, 60
    fd = os.open(base, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir(name, dir_fd=fd)
        below = os.open(name, os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    os.close(os.open("f", os.O_CREAT | os.O_WRONLY, dir_fd=fd))
    os.close(fd)
    rig = open_rig()
    path = b"/".join([name.encode()] * depth)
    assert rig.ls(path) == [b"f"]
    rig.create(path + b"/g", b"x")
    rig.reopen()
    assert rig.read(path + b"/g") == b"x"
    rig.remove_tree(name.encode())
    assert rig.ls() == []


def test_a_large_sparse_base_file(open_rig: Callable[[], Rig], base: Path) -> None:
    with (base / "f").open("wb") as file:
        file.truncate(6 << 30)
        file.seek(5 << 30)
        file.write(b"here")
    rig = open_rig()
    handle = rig.open(b"f")
    assert handle.inode.size == 6 << 30
    assert handle.read((5 << 30) - 1, 6) == b"\0here\0"
    handle.write(5 << 30, b"HE")
    rig.volume.sync()
    rig.evict()
    assert handle.read((5 << 30) - 1, 6) == b"\0HEre\0"
    assert handle.read((6 << 30) - 1, 6) == b"\0"
    handle.close()


# -- what cannot be read ------------------------------------------------------------------------


def test_a_directory_that_went_before_it_was_listed(
    open_rig: Callable[[], Rig], base: Path
) -> None:
    (base / "d").mkdir()
    (base / "f").write_text("fine")
    rig = open_rig()
    assert rig.ls() == [b"d", b"f"]
    shutil.rmtree(base / "d")
    assert errno_of(rig.ls, b"d") == errno.ENOENT
    assert rig.problems() == [("unreadable", "d")]
    assert rig.read(b"f") == b"fine"
    rig.reopen()
    assert rig.ls() == [b"f"]


def test_unreadable_things_are_errors_of_their_own(
    open_rig: Callable[[], Rig], base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file and a directory that may not be read fail alone, and work when they may."""
    (base / "secret").mkdir()
    (base / "secret" / "x").write_text("x")
    (base / "file").write_text("secret")
    (base / "open").write_text("open")
    rig = open_rig()
    rig.ls()
    volume_base = rig.volume.base
    assert volume_base is not None

    def refuse(path: bytes) -> object:
        raise PermissionError(errno.EACCES, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(volume_base, "scan", refuse)
        patch.setattr(volume_base, "open_file", refuse)
        assert errno_of(rig.ls, b"secret") == errno.EACCES
        assert errno_of(rig.read, b"file") == errno.EACCES
        assert rig.at(b"file").size == 6
    assert rig.problems() == [("unreadable", "secret"), ("unreadable", "file")]
    assert rig.read(b"open") == b"open"
    assert rig.ls(b"secret") == [b"x"]
    assert rig.read(b"file") == b"secret"


def test_the_base_may_not_lead_out_of_itself(open_rig: Callable[[], Rig], base: Path) -> None:
    """A directory that was replaced by a link is not followed."""
    outside = base.parent / "outside"
    outside.mkdir()
    (outside / "f").write_text("secret!")
    (base / "d").mkdir()
    (base / "d" / "f").write_text("inside!")
    rig = open_rig()
    assert rig.exists(b"d/f")
    (base / "d" / "f").unlink()
    (base / "d").rmdir()
    os.symlink("../outside", base / "d")
    assert errno_of(rig.read, b"d/f") != 0
    rig.reopen()
    assert rig.at(b"d").target == b"../outside"


def test_without_a_base_what_was_not_read_is_an_error(
    open_rig: Callable[[], Rig], base: Path
) -> None:
    (base / "d").mkdir()
    (base / "f").write_text("x")
    (base / "sealed").write_text("x")
    rig = open_rig()
    rig.create(b"new", b"here")
    rig.ls()
    rig.close()
    blind = Rig(rig.store, None)
    assert blind.ls() == [b"d", b"f", b"new", b"sealed"]
    assert blind.read(b"new") == b"here"
    assert errno_of(blind.read, b"f") == errno.EIO
    assert errno_of(blind.ls, b"d") == errno.EIO
    blind.finish(check=False)
    rig.start()
    assert rig.read(b"f") == b"x"
