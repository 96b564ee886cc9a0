"""Trees to go back to, and everything that can be seen of one."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import NamedTuple

from tests.mount.calls import PathLike, write_file
from tests.support.listing import Entry, difference, listing

SECOND = 1_000_000_000


class State(NamedTuple):
    """All that a tree shows: the listing, and by path the ctime in ns."""

    entries: dict[str, Entry]
    ctimes: dict[str, int]


def state_of(top: PathLike) -> State:
    """Look at everything, through the mount."""
    entries = listing(os.fsdecode(top))
    ctimes = {p: os.lstat(os.path.join(os.fsdecode(top), p)).st_ctime_ns for p in entries}
    return State(entries, ctimes)


def assert_same(found: State, right: State, *, but_ctime_of: tuple[str, ...] = ()) -> None:
    """Raises AssertionError with one line for each difference.

    but_ctime_of: files that something held during a restore. Their ctime is the kernel's.
    """
    lines = difference(right.entries, found.entries)
    lines += [
        f"{path!r}: ctime is {found.ctimes[path]}, should be {ctime}"
        for path, ctime in right.ctimes.items()
        if path in found.ctimes and found.ctimes[path] != ctime and path not in but_ctime_of
    ]
    assert not lines, "\n".join(["the tree is not what it should be:", *lines])


def fill_base(base: Path) -> None:
    """What lies in a directory before it is mounted."""
    for number in range(3):
        directory = base / f"base{number}"
        (directory / "deep/deeper").mkdir(parents=True)
        write_file(directory / "one", b"one\n" * 1000)
        write_file(directory / "two", bytes(range(256)) * 1024)
        os.link(directory / "one", directory / "deep/one-again")
        os.symlink("../one", directory / "deep/link")
        write_file(directory / "deep/deeper/leaf", b"leaf %d" % number, 0o640)
        os.utime(directory / "two", ns=(SECOND, 10**18 + number))


def make_first(top: Path) -> None:
    """A tree with something of everything, beside what was there."""
    for name in ("stays", "grows", "shrinks", "rewritten", "replaced", "moves", "goes", "mode"):
        write_file(top / name, name.encode() * 20_000)
    write_file(top / "empty", b"")
    (top / "dir/sub").mkdir(parents=True)
    for number in range(20):
        write_file(top / f"dir/f{number}", b"%d" % number)
    write_file(top / "dir/sub/in", b"in")
    os.symlink("stays", top / "symlink")
    os.symlink("dir", top / "dirlink")
    os.mkfifo(top / "fifo", 0o620)
    os.link(top / "stays", top / "dir/hard")
    os.link(top / "grows", top / "second")
    os.setxattr(top / "mode", "user.note", b"first")
    os.setxattr(top / "dir", "user.dir", b"first")
    os.utime(top / "stays", ns=(5, 10**18 + 123_456_789))
    os.utime(top / "dir/sub", ns=(6, 10**18 + 987_654_321))
    (top / "becomes-dir").write_text("a file")
    (top / "becomes-file").mkdir()
    (top / "becomes-file/in").write_text("in")
    (top / "becomes-link").write_text("a file")
    os.symlink("stays", top / "link-becomes-file")
    (top / "dir-becomes-link").mkdir()
    (top / "dir-becomes-link/in").write_text("in")
    top.chmod(0o755)
    os.setxattr(top, "user.root", b"first")
    with open(top / "sparse", "wb") as file:
        file.truncate(9 << 20)
        file.seek(5 << 20)
        file.write(b"in the middle")


def make_second(top: Path) -> None:
    """Change the first tree in every way."""
    with open(top / "grows", "ab") as file:
        file.write(b"more" * 50_000)
    os.truncate(top / "shrinks", 70_001)
    with open(top / "rewritten", "r+b") as file:
        file.seek(66_000)
        file.write(b"REWRITTEN" * 100)
    write_file(top / "new", b"another file")
    os.rename(top / "new", top / "replaced")
    os.rename(top / "moves", top / "dir/sub/moved")
    os.unlink(top / "goes")
    os.chmod(top / "mode", 0o751)
    os.setxattr(top / "mode", "user.note", b"second")
    os.setxattr(top / "mode", "user.more", b"second")
    os.removexattr(top / "dir", "user.dir")
    write_file(top / "empty", b"not any more")
    for number in range(10):
        os.unlink(top / f"dir/f{number}")
        write_file(top / f"dir/n{number}", b"new %d" % number)
    write_file(top / "dir/f15", b"made anew")
    os.unlink(top / "symlink")
    os.symlink("elsewhere", top / "symlink")
    os.unlink(top / "fifo")
    write_file(top / "fifo", b"a file now")
    os.unlink(top / "second")
    os.link(top / "stays", top / "third")
    os.unlink(top / "becomes-dir")
    (top / "becomes-dir/sub").mkdir(parents=True)
    (top / "becomes-dir/sub/in").write_text("in")
    shutil.rmtree(top / "becomes-file")
    (top / "becomes-file").write_text("a file")
    os.unlink(top / "becomes-link")
    os.symlink("dir", top / "becomes-link")
    os.unlink(top / "link-becomes-file")
    (top / "link-becomes-file").write_text("a file")
    shutil.rmtree(top / "dir-becomes-link")
    os.symlink("dir", top / "dir-becomes-link")
    (top / "fresh/a/b").mkdir(parents=True)
    (top / "fresh/a/b/c").write_text("c")
    os.rename(top / "base0", top / "fresh/base0")
    os.rename(top / "fresh/base0/one", top / "fresh/base0/deep/deeper/one")
    shutil.rmtree(top / "base1")
    write_file(top / "base2/one", b"written over the base")
    with open(top / "base2/two", "r+b") as file:
        file.seek(100_000)
        file.write(b"in the base file")
    os.truncate(top / "base2/two", 150_000)
    os.chmod(top / "base2/deep/deeper", 0o700)
    os.truncate(top / "sparse", 1 << 20)
    top.chmod(0o711)
    os.removexattr(top, "user.root")
    os.utime(top, ns=(7, 10**18 + 5))


def make_third(top: Path) -> None:
    """Ruin it."""
    for name in os.listdir(top):
        path = top / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            os.unlink(path)
    (top / "left").write_text("all that is left")
