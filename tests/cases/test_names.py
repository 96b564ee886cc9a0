"""Names and attributes: links, renames, what a name is made anew as, what a target cannot hold."""

from __future__ import annotations

import os
import shutil
import stat
import struct
import subprocess
from pathlib import Path

import pytest

from tests.cases.workspace import Workspace, nothing_changes_in
from tests.cli.command import Cowfs
from tests.mount.calls import errno_of, write_file
from tests.support.listing import difference, listing, portable

CAPABILITY = struct.pack("<IIIII", 0x02000001, 1 << 10, 0, 0, 0)
"""vfs_cap_data of capabilities(7), revision 2, effective: CAP_NET_BIND_SERVICE."""


@pytest.mark.parametrize("target", ["absolute", "relative"])
def test_case_08_link_to_outside_and_directory(cowfs: Cowfs, project: Path, target: str) -> None:
    """A symbolic link to a directory outside is replaced by a real directory; restore; and the
    other way round; apply and export of each."""
    outside = cowfs.top / "outside"
    (outside / "sub").mkdir(parents=True)
    write_file(outside / "precious", b"precious")
    write_file(outside / "sub/deep", b"deep")
    os.symlink(outside if target == "absolute" else "../outside", project / "place")
    link = os.readlink(project / "place")
    space = Workspace(cowfs, project)
    with nothing_changes_in(outside):
        with_link = space.checkpoint()
        linked = space.state()
        (space.top / "place").unlink()
        (space.top / "place/sub").mkdir(parents=True)
        write_file(space.top / "place/precious", b"not that one")
        with_directory = space.checkpoint()
        directory = space.state()
        for _ in range(2):
            space.restore(with_link)
            space.must_be(linked)
            assert os.readlink(space.top / "place") == link
            space.restore(with_directory)
            space.must_be(directory)
        exported = space.export(with_link)
        assert os.readlink(exported / "place") == link
        exported = space.export(with_directory)
        assert difference(portable(directory.entries), portable(listing(exported))) == []
        space.unmount()
        assert stat.S_ISDIR(os.lstat(project / "place").st_mode)
        assert difference(portable(directory.entries), portable(listing(project))) == []
        space.mount()
        space.restore(with_link)
        space.unmount()
        assert os.readlink(project / "place") == link
        assert difference(portable(linked.entries), portable(listing(project))) == []
        space.mount()
        space.must_be(linked)


def test_case_20_rename_over_and_open(space: Workspace) -> None:
    """Write a temporary file, rename it over, open at once: always the new content."""
    place, temporary = space.top / "file", space.top / ".file.tmp"
    for number in range(200):
        content = b"%d\n" % number * (number % 3 * 30_000 + 1)
        write_file(temporary, content)
        os.rename(temporary, place)
        assert place.read_bytes() == content
        assert os.listdir(space.top).count("file") == 1
    final = space.state()
    space.remount()
    space.must_be(final)


def test_case_20_rename_of_a_base_directory(cowfs: Cowfs, project: Path) -> None:
    """A directory of the base is renamed: all that is below it is there, after a remount too."""
    for number in range(50):
        write_file(project / f"f{number}", b"")
    (project / "from/in/deep").mkdir(parents=True)
    for number in range(50):
        write_file(project / f"from/f{number}", b"%d" % number)
    write_file(project / "from/in/deep/leaf", b"leaf")
    right = portable(listing(project / "from"))
    space = Workspace(cowfs, project)
    os.rename(space.top / "from", space.top / "to")
    (space.top / "from").mkdir()
    assert os.listdir(space.top / "from") == []
    assert difference(right, portable(listing(space.top / "to"))) == []
    space.unmount("--no-apply")
    space.mount()
    assert os.listdir(space.top / "from") == []
    assert difference(right, portable(listing(space.top / "to"))) == []
    space.remount()
    assert difference(right, portable(listing(space.top / "to"))) == []


def test_case_20_link_over_a_deleted_name(cowfs: Cowfs, project: Path) -> None:
    """A name of the base is deleted and made anew as a symbolic link; remount: it is there."""
    write_file(project / "file", b"of the base")
    (project / "directory/sub").mkdir(parents=True)
    write_file(project / "target", b"target")
    space = Workspace(cowfs, project)
    (space.top / "file").unlink()
    shutil.rmtree(space.top / "directory")
    os.symlink("target", space.top / "file")
    os.symlink("target", space.top / "directory")
    right = space.state()
    for options in (["--no-apply"], []):
        space.unmount(*options)
        space.mount()
        space.must_be(right)
        assert (space.top / "directory").read_bytes() == b"target"


def test_case_24_hard_links_of_the_base(cowfs: Cowfs, project: Path) -> None:
    """Hard links in the base, one written: one file and one inode, through remounts."""
    write_file(project / "a", b"one")
    (project / "sub").mkdir()
    os.link(project / "a", project / "b")
    os.link(project / "a", project / "sub/c")
    names = [project / name for name in ("a", "b", "sub/c")]
    space = Workspace(cowfs, project)

    def one_file(content: bytes) -> int:
        found = {(st.st_ino, st.st_nlink) for st in map(os.stat, names)}
        assert [path.read_bytes() for path in names] == [content] * 3
        ((ino, nlink),) = found
        assert nlink == 3
        return ino

    ino = one_file(b"one")
    before = space.checkpoint()
    with open(names[1], "r+b") as file:
        file.write(b"two")
    assert one_file(b"two") == ino
    for options in (["--no-apply"], []):
        space.unmount(*options)
        space.mount()
        assert one_file(b"two") == ino
    space.restore(before)
    assert one_file(b"one") == ino
    space.unmount()
    assert len({os.stat(path).st_ino for path in names}) == 1, "apply kept the links"
    assert names[2].read_bytes() == b"one"
    space.mount()
    assert one_file(b"one") == ino


def test_case_28_modes_and_attributes(cowfs: Cowfs, project: Path) -> None:
    """A capability of a program, setuid and setgid bits, a file with mode 000: kept by
    checkpoint, restore, apply and export."""
    write_file(project / "program", b"#!/bin/true\n", 0o755)
    write_file(project / "setuid", b"#!/bin/true\n", 0o6755)
    write_file(project / "closed", b"closed", 0o600)
    os.setxattr(project / "closed", "user.note", b"kept")
    (project / "shared").mkdir()
    (project / "shared").chmod(0o3775)
    space = Workspace(cowfs, project)
    os.chmod(space.top / "closed", 0)
    if os.geteuid() == 0:
        os.setxattr(space.top / "program", "security.capability", CAPABILITY)
        os.setxattr(space.top / "program", "trusted.note", b"root's")
        os.chown(space.top / "closed", 12, 34)
        os.mknod(space.top / "device", stat.S_IFCHR | 0o600, os.makedev(1, 3))
    write_file(space.top / "made", b"#!/bin/true\n", 0o4711)
    os.setxattr(space.top / "made", "user.long", b"\0" * 2000)
    # A user cannot read what has mode 000; all but its content is compared then.
    readable = os.geteuid() == 0

    def seen(top: Path) -> object:
        if readable:
            return portable(listing(top))
        return {
            name: (st.st_mode, st.st_size, st.st_uid, st.st_gid, st.st_mtime_ns)
            for name in sorted(os.listdir(top))
            for st in [os.lstat(top / name)]
            if not stat.S_ISDIR(st.st_mode)
        }

    right, here = seen(space.top), space.checkpoint()
    for name in ("program", "setuid", "made"):
        write_file(space.top / name, b"changed")
    os.chmod(space.top / "closed", 0o644)
    os.chmod(space.top / "setuid", 0o644)
    os.removexattr(space.top / "closed", "user.note")
    shutil.rmtree(space.top / "shared")
    if os.geteuid() == 0:
        assert errno_of(os.getxattr, space.top / "program", "security.capability") == "ENODATA"
        os.unlink(space.top / "device")
    space.restore(here)
    assert seen(space.top) == right
    assert seen(space.export(here)) == right
    space.remount()
    assert seen(space.top) == right
    space.unmount()
    assert seen(project) == right
    space.mount()


def test_case_28_what_the_target_cannot_hold(cowfs: Cowfs, project: Path) -> None:
    """A directory of the base cannot be written (immutable, for root; closed, for a user): apply
    says so and loses nothing, and is finished when it can be written."""
    frozen = project / "frozen"
    frozen.mkdir()
    write_file(frozen / "file", b"of the base")
    write_file(project / "free", b"of the base")
    at = cowfs.top / "at"
    at.mkdir()
    if os.geteuid() == 0 and not immutable(frozen, on=True):
        pytest.skip("the file system of the tests has no immutable flag, or chattr is missing")
    if os.geteuid() != 0:
        frozen.chmod(0o555)
    try:
        space = Workspace(cowfs, project, at=at)
        if os.geteuid() != 0:
            (space.top / "frozen").chmod(0o755)
        write_file(space.top / "frozen/file", b"changed")
        write_file(space.top / "frozen/new", b"new")
        write_file(space.top / "free", b"changed")
        right, here = space.state(), space.checkpoint()
        result = cowfs.run("apply", "--json", cwd=space.top)
        if os.geteuid() == 0:
            assert result.code == 48, result
            error = result.document["error"]
            assert error["code"] == "COWFS_APPLY_FAILED"
            assert "frozen" in error["message"]
            assert (frozen / "file").read_bytes() == b"of the base"
        space.must_be(right)
        exported = space.export(here)
        assert difference(portable(right.entries), portable(listing(exported))) == []
    finally:
        if os.geteuid() == 0:
            immutable(frozen, on=False)
    space.run("apply")
    space.must_be(right)
    assert (frozen / "file").read_bytes() == b"changed"
    assert difference(portable(right.entries), portable(listing(project))) == []


def immutable(path: Path, *, on: bool) -> bool:
    """chattr(1) +i or -i; whether it could be done."""
    tool = shutil.which("chattr")
    if tool is None:
        return False
    done = subprocess.run([tool, "+i" if on else "-i", path], check=False, capture_output=True)
    return done.returncode == 0
