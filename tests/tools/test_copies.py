"""rsync, tar and cp -a carry everything into a mount and out of it again."""

from __future__ import annotations

import os
import random
import socket
import stat
from pathlib import Path

import pytest

from tests.support.listing import difference, listing, portable
from tests.support.mounting import Mounted
from tests.tools.tool import changes, need, run

_SECOND = 1_000_000_000
_ROOT = os.geteuid() == 0


def fill(top: Path) -> None:
    """One of everything that a tree can hold but POSIX ACLs, which cowfs refuses; old times."""
    rng = random.Random(7)
    for directory in ("a/b/c", "empty", "many", os.fsdecode(b"n\xffot utf-8"), "sticky"):
        (top / directory).mkdir(parents=True)
    for number in range(300):
        (top / "many" / f"file {number}").write_bytes(rng.randbytes(rng.randrange(9000)))
    (top / "a" / "big").write_bytes(rng.randbytes(3 << 20))
    with open(top / "a" / "sparse", "wb") as file:
        file.seek(1 << 20)
        file.write(b"after a hole")
        file.truncate(4 << 20)
    (top / "a" / "none").touch()
    (top / "a" / ("long " * 50)).write_text("a name of 250 bytes")
    (top / os.fsdecode(b"n\xffot utf-8") / os.fsdecode(b"\x01\xfe\n")).write_text("odd")
    os.link(top / "a" / "big", top / "a" / "b" / "linked")
    os.link(top / "a" / "big", top / "a" / "b" / "c" / "linked too")
    os.symlink("../a/big", top / "empty" / "to a file")
    os.symlink("/nowhere/at all", top / "dangling")
    os.symlink("b", top / "a" / "to a directory")
    os.mkfifo(top / "a" / "fifo", 0o640)
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(os.fspath(top / "a" / "socket"))
    os.chmod(top / "sticky", 0o1777)
    script = top / "a" / "script"
    script.write_text("#!/bin/sh\n")
    if _ROOT:
        os.mknod(top / "a" / "device", stat.S_IFCHR | 0o600, os.makedev(1, 3))
        os.mknod(top / "a" / "disk", stat.S_IFBLK | 0o600, os.makedev(7, 200))
        os.chown(script, 1234, 4321)
        os.chown(top / "dangling", 7, 8, follow_symlinks=False)
        os.setxattr(script, "trusted.secret", b"\0binary\xff")
    os.setxattr(top / "a" / "big", "user.note", b"a value")
    os.setxattr(top / "a", "user.empty", b"")
    os.chmod(top / "many" / "file 0", 0o6755)
    os.chmod(top / "many" / "file 1", 0o000 if _ROOT else 0o400)
    paths = sorted(top.rglob("*"), reverse=True)
    for number, path in enumerate(paths):
        when = _SECOND * 1_400_000_000 + number * 1_000_003
        os.utime(path, ns=(when, when), follow_symlinks=False)
    os.utime(top, ns=(_SECOND, _SECOND))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """The tree on an ordinary file system."""
    directory = tmp_path / "source"
    directory.mkdir()
    fill(directory)
    return directory


def same(first: Path, second: Path) -> None:
    """Two trees hold the same."""
    assert difference(portable(listing(first)), portable(listing(second))) == []
    # Hard links: the same paths share an inode.
    assert _linked(first) == _linked(second)


def _linked(top: Path) -> set[frozenset[str]]:
    groups: dict[int, set[str]] = {}
    for path, entry in listing(top).items():
        if entry.kind == "file" and entry.nlink > 1:
            groups.setdefault(entry.ino, set()).add(path)
    return {frozenset(paths) for paths in groups.values()}


class Rsync:
    """rsync -aHAX."""

    def __init__(self, cwd: Path, env: dict[str, str]) -> None:
        need("rsync")
        self.cwd = cwd
        self.env = env

    def _run(self, options: str, source: Path, target: Path) -> str:
        words = ["rsync", options, "--numeric-ids", "--delete", f"{source}/", f"{target}/"]
        return run(words, self.cwd, self.env)

    def copy(self, source: Path, target: Path) -> None:
        assert self._run("-aHAX", source, target) == ""

    def differing(self, source: Path, target: Path) -> str:
        """What rsync would do, by attributes and then by reading everything."""
        return self._run("-aHAXin", source, target) + self._run("-aHAXinc", source, target)


def test_rsync_both_ways(
    workspace: Mounted, source: Path, plain: Path, env: dict[str, str]
) -> None:
    rsync = Rsync(plain, env)
    inside = workspace.mountpoint / "copy"
    rsync.copy(source, inside)
    assert rsync.differing(source, inside) == ""
    same(source, inside)
    checkpoint = workspace.checkpoint()
    before = listing(inside)

    # An update through temporary files and renames, and with --delete.
    (source / "many" / "file 7").write_text("new\n")
    (source / "many" / "file 8").unlink()
    os.chmod(source / "a" / "script", 0o750)
    # rsync compares whole seconds of times.
    os.utime(source / "many", ns=(_SECOND, _SECOND))
    rsync.copy(source, inside)
    assert rsync.differing(source, inside) == ""
    same(source, inside)
    # file 7, script, a name less; the directory's own time is a modification, too.
    created, _, deleted = changes(workspace)
    assert (created, deleted) == (0, 1)

    rsync.copy(inside, plain)
    assert rsync.differing(inside, plain) == ""
    same(inside, plain)
    workspace.restore(checkpoint)
    assert difference(before, listing(inside)) == []
    listed = rsync._run("-aHAXin", plain, inside).splitlines()
    assert "*deleting   many/file 8" in listed
    assert ">f.st...... many/file 7" in listed


def test_tar_round_trip(workspace: Mounted, source: Path, plain: Path, env: dict[str, str]) -> None:
    need("tar")
    top = workspace.mountpoint
    (source / "a" / "socket").unlink()  # which no archive can hold
    os.utime(source / "a", ns=(_SECOND, _SECOND))
    keeping = ["--xattrs", "--xattrs-include=*", "--acls", "--numeric-owner", "--format=posix"]

    def through(directory: Path, archive: Path, target: Path) -> None:
        """Pack a directory and unpack it in another."""
        target.mkdir(exist_ok=True)
        run(["tar", *keeping, "--sparse", "-C", directory, "-cf", archive, "."], plain, env)
        run(["tar", *keeping, "-p", "--same-owner", "-C", target, "-xf", archive], plain, env)
        compared = run(["tar", *keeping, "-C", target, "-df", archive], plain, env)
        assert compared == ""

    through(source, plain / "1.tar", top / "copy")
    same(source, top / "copy")
    checkpoint = workspace.checkpoint()
    through(top / "copy", top / "2.tar", top / "again")
    same(source, top / "again")
    through(top / "again", plain / "3.tar", plain / "out")
    same(source, plain / "out")
    run(["rm", "-rf", top / "copy", top / "again"], plain, env)
    workspace.restore(checkpoint)
    same(source, top / "copy")
    assert [path.name for path in top.iterdir()] == ["copy"]


def test_cp_round_trip(workspace: Mounted, source: Path, plain: Path, env: dict[str, str]) -> None:
    top = workspace.mountpoint
    run(["cp", "-a", source, top / "copy"], plain, env)
    same(source, top / "copy")
    run(["cp", "-a", top / "copy", top / "again"], plain, env)
    checkpoint = workspace.checkpoint()
    run(["mv", top / "again", top / ("a" * 200)], plain, env)
    same(source, top / ("a" * 200))
    run(["cp", "-a", "--reflink=auto", "--sparse=always", top / "copy", plain / "out"], plain, env)
    same(source, plain / "out")
    run(["rm", "-rf", "--", *top.iterdir()], plain, env)
    workspace.restore(checkpoint)
    same(source, top / "copy")
    same(source, top / "again")
    assert changes(workspace) == (0, 0, 0)
