"""What any user can do in a directory, with the right values, as plain functions.

Each runs in an empty directory of its own: on a mount, on an ordinary file system (so that what is
claimed to be right is what the kernel's own file systems do) and on an unprivileged user's mount.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import random
import shutil
import socket
import stat
import subprocess
import termios
from collections.abc import Callable
from pathlib import Path

from tests.mount.calls import (
    AT_SYMLINK_FOLLOW,
    EXCHANGE,
    NOREPLACE,
    PAGE,
    UTIME_NOW,
    UTIME_OMIT,
    DirectoryStream,
    errno_of,
    fallocate,
    in_child,
    linkat,
    opened,
    read_all,
    renameat2,
    utimensat,
    write_file,
)

Scenario = Callable[[Path], None]
ANYONE: list[Scenario] = []
"""What needs no privilege."""
ROOT: list[Scenario] = []
"""What only root may do."""

MIB = 1 << 20
GIB = 1 << 30
SECOND = 1_000_000_000


def anyone(fn: Scenario) -> Scenario:
    ANYONE.append(fn)
    return fn


def as_root(fn: Scenario) -> Scenario:
    ROOT.append(fn)
    return fn


# -- files --------------------------------------------------------------------------------------


@anyone
def create_write_read(top: Path) -> None:
    path = top / "f"
    with opened(path, os.O_CREAT | os.O_RDWR | os.O_EXCL, 0o640) as fd:
        st = os.fstat(fd)
        assert (st.st_size, st.st_nlink, stat.S_IMODE(st.st_mode)) == (0, 1, 0o640)
        assert (st.st_uid, st.st_gid) == (os.geteuid(), os.getegid())
        assert os.write(fd, b"hello") == 5
        assert os.pwrite(fd, b"HE", 0) == 2
        assert os.pread(fd, 100, 1) == b"Ello"
        assert os.pread(fd, 100, 5) == b""
        assert os.read(fd, 10) == b""
        assert os.lseek(fd, -2, os.SEEK_END) == 3
        assert os.read(fd, 10) == b"lo"
        assert os.writev(fd, [b" ", b"world"]) == 6
    assert path.read_bytes() == b"HEllo world"
    assert os.stat(path).st_size == 11


@anyone
def access_modes_of_descriptors(top: Path) -> None:
    path = top / "f"
    write_file(path, b"data")
    with opened(path, os.O_WRONLY) as fd:
        assert errno_of(os.read, fd, 1) == "EBADF"
        assert os.pwrite(fd, b"D", 1) == 1  # the rest of the page has to be read for this
    with opened(path, os.O_RDONLY) as fd:
        assert errno_of(os.write, fd, b"x") == "EBADF"
        assert errno_of(os.ftruncate, fd, 0) == "EINVAL"
    assert path.read_bytes() == b"dDta"


@anyone
def exclusive_creation(top: Path) -> None:
    path, link = top / "f", top / "link"
    write_file(path, b"first")
    os.symlink("absent", link)
    flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY
    assert errno_of(os.open, path, flags) == "EEXIST"
    assert errno_of(os.open, link, flags) == "EEXIST"
    assert path.read_bytes() == b"first"
    assert not (top / "absent").exists()


@anyone
def truncate_on_open(top: Path) -> None:
    path = top / "f"
    write_file(path, b"x" * 200_000)
    with opened(path) as reader, opened(path, os.O_RDWR | os.O_TRUNC) as fd:
        assert os.fstat(fd).st_size == 0
        assert os.fstat(reader).st_size == 0
        assert os.pread(reader, 10, 0) == b""
        os.pwrite(fd, b"y", 70_000)
        assert os.pread(reader, 100_000, 0) == bytes(70_000) + b"y"
    assert os.stat(path).st_size == 70_001


@anyone
def truncate_and_grow(top: Path) -> None:
    path = top / "f"
    write_file(path, b"a" * 150_000)
    os.truncate(path, 65_540)
    os.truncate(path, 140_000)
    assert path.read_bytes() == b"a" * 65_540 + bytes(140_000 - 65_540)
    os.truncate(path, 0)
    os.truncate(path, 3)
    assert path.read_bytes() == bytes(3)


@anyone
def appending(top: Path) -> None:
    path = top / "f"
    write_file(path, b"start\n")

    def append(letter: bytes) -> None:
        with opened(path, os.O_WRONLY | os.O_APPEND) as fd:
            for _ in range(100):
                os.write(fd, letter * 99 + b"\n")

    children = []
    for letter in (b"a", b"b", b"c"):
        pid = os.fork()
        if pid == 0:
            try:
                append(letter)
            finally:
                os._exit(0)
        children.append(pid)
    for pid in children:
        assert os.waitpid(pid, 0)[1] == 0
    lines = path.read_bytes().splitlines()
    assert lines[0] == b"start"
    assert sorted(lines[1:]) == [letter * 99 for letter in (b"a", b"b", b"c") for _ in range(100)]
    with opened(path, os.O_WRONLY | os.O_APPEND) as fd:
        os.lseek(fd, 0, os.SEEK_SET)
        os.write(fd, b"end")
    assert path.read_bytes().endswith(b"\nend")


@anyone
def random_operations(top: Path) -> None:
    """Writes, truncations and mapped stores all over a file, against a bytearray."""
    path = top / "f"
    rng = random.Random(20)
    model = bytearray()
    limit = 400_000
    with opened(path, os.O_CREAT | os.O_RDWR) as fd:
        for step in range(400):
            what = rng.randrange(10)
            at, length = rng.randrange(limit), rng.choice((1, 17, 4096, 5000, 65_536, 70_000))
            if what < 5:
                data = rng.randbytes(length)
                os.pwrite(fd, data, at)
                if at > len(model):
                    model.extend(bytes(at - len(model)))
                model[at : at + length] = data
            elif what == 5:
                os.ftruncate(fd, at)
                if at < len(model):
                    del model[at:]
                else:
                    model.extend(bytes(at - len(model)))
            elif what == 6 and len(model) > length:
                start = rng.randrange(len(model) - length)
                with mmap.mmap(fd, len(model)) as mapping:
                    mapping[start : start + length] = data = rng.randbytes(length)
                model[start : start + length] = data
            elif what == 7:
                # What was written is read back from the file system, not from the page cache.
                os.fsync(fd)
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            elif what == 8:
                with opened(path, os.O_WRONLY | os.O_APPEND) as appender:
                    os.write(appender, b"appended")
                model += b"appended"
            else:
                assert os.pread(fd, length, at) == model[at : at + length], f"step {step}"
            assert os.fstat(fd).st_size == len(model), f"step {step}"
        assert read_all(fd) == model
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        assert read_all(fd) == model


@anyone
def sparse_file(top: Path) -> None:
    path = top / "f"
    with opened(path, os.O_CREAT | os.O_RDWR) as fd:
        os.pwrite(fd, b"data", 10 * MIB)
        os.ftruncate(fd, 20 * MIB)
        os.fsync(fd)
        assert os.pread(fd, 8192, 5 * MIB) == bytes(8192)
        assert os.pread(fd, 6, 10 * MIB - 1) == b"\0data\0"
        assert os.pread(fd, 100, 20 * MIB - 10) == bytes(10)
        assert os.lseek(fd, 0, os.SEEK_DATA) <= 10 * MIB
        assert 10 * MIB + 4 <= os.lseek(fd, 10 * MIB, os.SEEK_HOLE) <= 20 * MIB
        assert errno_of(os.lseek, fd, 20 * MIB, os.SEEK_DATA) == "ENXIO"
    assert os.stat(path).st_size == 20 * MIB


@anyone
def past_four_gibibytes(top: Path) -> None:
    path = top / "f"
    with opened(path, os.O_CREAT | os.O_RDWR) as fd:
        os.pwrite(fd, b"across", 4 * GIB - 3)
        os.pwrite(fd, b"far", 5 * GIB + 1)
        os.pwrite(fd, b"near", 0)
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        assert os.pread(fd, 6, 4 * GIB - 3) == b"across"
        assert os.pread(fd, 10, 5 * GIB) == b"\0far"
        assert os.pread(fd, 4, 0) == b"near"
        assert os.fstat(fd).st_size == 5 * GIB + 4
        with mmap.mmap(fd, 4, offset=5 * GIB) as mapping:
            assert mapping[:4] == b"\0far"
        os.ftruncate(fd, 6 * GIB)
        assert os.lseek(fd, 0, os.SEEK_END) == 6 * GIB
        os.ftruncate(fd, 4 * GIB)
        assert os.pread(fd, 10, 4 * GIB - 3) == b"acr"
        os.ftruncate(fd, 5 * GIB)
        assert os.pread(fd, 6, 4 * GIB - 3) == b"acr\0\0\0"
    assert os.stat(path).st_size == 5 * GIB


@anyone
def unlinked_open_file(top: Path) -> None:
    path, directory = top / "d/f", top / "d"
    directory.mkdir()
    with opened(path, os.O_CREAT | os.O_RDWR, 0o600) as fd:
        os.write(fd, b"hello")
        os.unlink(path)
        assert os.fstat(fd).st_nlink == 0
        assert os.listdir(directory) == []
        os.rmdir(directory)
        os.pwrite(fd, b"X" * 100_000, 5)
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        assert read_all(fd) == b"hello" + b"X" * 100_000
        os.ftruncate(fd, 3)
        os.fchmod(fd, 0o640)
        os.utime(fd, ns=(5, 7))
        st = os.fstat(fd)
        assert (st.st_size, stat.S_IMODE(st.st_mode), st.st_mtime_ns) == (3, 0o640, 7)
        with opened(f"/proc/self/fd/{fd}", os.O_RDWR) as again:
            assert os.read(again, 10) == b"hel"
            os.pwrite(again, b"H", 0)
        assert os.pread(fd, 10, 0) == b"Hel"
        back = os.fspath(top / "back")
        assert errno_of(linkat, f"/proc/self/fd/{fd}", back, AT_SYMLINK_FOLLOW) == "ENOENT"
    assert os.listdir(top) == []


@anyone
def replaced_open_file(top: Path) -> None:
    path, new = top / "f", top / "new"
    write_file(path, b"old content")
    with opened(path, os.O_RDWR) as fd:
        number = os.fstat(fd).st_ino
        write_file(new, b"new")
        os.rename(new, path)
        assert os.pread(fd, 100, 0) == b"old content"
        assert (os.fstat(fd).st_ino, os.fstat(fd).st_nlink) == (number, 0)
        os.pwrite(fd, b"ZZZ", 0)
        assert path.read_bytes() == b"new"
    assert path.read_bytes() == b"new"
    assert os.listdir(top) == ["f"]


# -- mappings and programs ----------------------------------------------------------------------


@anyone
def shared_mapping(top: Path) -> None:
    path = top / "f"
    write_file(path, bytes(4 * PAGE))
    with opened(path, os.O_RDWR) as fd:
        mapping = mmap.mmap(fd, 4 * PAGE)
    mapping[10:15] = b"store"
    assert path.read_bytes()[10:15] == b"store"

    def other() -> None:
        with opened(path, os.O_RDWR) as mine, mmap.mmap(mine, 4 * PAGE) as view:
            assert view[10:15] == b"store"
            view[PAGE : PAGE + 5] = b"child"
            os.pwrite(mine, b"write", 2 * PAGE)

    in_child(other)
    assert mapping[PAGE : PAGE + 5] == b"child"
    assert mapping[2 * PAGE : 2 * PAGE + 5] == b"write"
    mapping[3 * PAGE : 3 * PAGE + 4] = b"last"
    mapping.close()  # without msync
    with opened(path) as fd:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        data = read_all(fd)
    assert (data[PAGE : PAGE + 5], data[3 * PAGE : 3 * PAGE + 4]) == (b"child", b"last")
    assert len(data) == 4 * PAGE


@anyone
def private_mapping(top: Path) -> None:
    path = top / "f"
    write_file(path, b"a" * 2 * PAGE)
    with opened(path) as fd:
        mapping = mmap.mmap(fd, 2 * PAGE, access=mmap.ACCESS_COPY)
    mapping[0:4] = b"mine"
    with opened(path, os.O_WRONLY) as fd:
        os.pwrite(fd, b"theirs", PAGE)
    assert mapping[0:5] == b"minea"
    assert mapping[PAGE : PAGE + 6] == b"theirs"
    assert path.read_bytes() == b"a" * PAGE + b"theirs" + b"a" * (PAGE - 6)
    mapping.close()


@anyone
def modification_time_of_mapped_stores(top: Path) -> None:
    path = top / "f"
    write_file(path, bytes(PAGE))
    os.utime(path, ns=(SECOND, SECOND))
    with opened(path, os.O_RDWR) as fd, mmap.mmap(fd, PAGE) as mapping:
        mapping[0] = 1
        mapping.flush()
        os.fsync(fd)
    assert os.stat(path).st_mtime_ns > SECOND


@anyone
def execute(top: Path) -> None:
    program = top / "program"
    shutil.copy(shutil.which("cat") or "/bin/cat", program)
    script = top / "script"
    write_file(script, f"#!{program}\nhello from the script\n".encode(), 0o755)
    done = subprocess.run([script], capture_output=True, check=True)
    assert done.stdout.endswith(b"\nhello from the script\n")
    os.chmod(program, 0o644)
    assert errno_of(subprocess.run, [program]) == "EACCES"
    os.chmod(program, 0o755)
    with subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as running:
        assert running.stdin is not None
        assert running.stdout is not None
        assert errno_of(os.open, program, os.O_WRONLY) == "ETXTBSY"
        os.unlink(program)
        running.stdin.write(b"still runs")
        running.stdin.close()
        assert running.stdout.read() == b"still runs"


# -- names --------------------------------------------------------------------------------------


@anyone
def directories(top: Path) -> None:
    before = os.stat(top).st_mtime_ns
    os.utime(top, ns=(SECOND, SECOND))
    os.mkdir(top / "d", 0o750)
    st = os.stat(top / "d")
    assert stat.S_ISDIR(st.st_mode)
    assert stat.S_IMODE(st.st_mode) == 0o750
    assert os.stat(top).st_mtime_ns >= before
    os.mkdir(top / "d/e")
    assert errno_of(os.rmdir, top / "d") == "ENOTEMPTY"
    assert errno_of(os.mkdir, top / "d") == "EEXIST"
    here = os.open(top / "d", os.O_RDONLY | os.O_DIRECTORY)
    os.rmdir(top / "d/e")
    os.rmdir(top / "d")
    assert errno_of(os.open, "x", os.O_CREAT | os.O_WRONLY, dir_fd=here) == "ENOENT"
    assert errno_of(os.mkdir, "x", dir_fd=here) == "ENOENT"
    assert errno_of(os.symlink, "t", "x", dir_fd=here) == "ENOENT"
    assert os.fstat(here).st_nlink == 0
    os.close(here)
    assert os.listdir(top) == []


@anyone
def directory_link_counts(top: Path) -> None:
    one, two = top / "one", top / "two"
    one.mkdir()
    two.mkdir()

    def counts() -> tuple[int, int]:
        return os.stat(one).st_nlink, os.stat(two).st_nlink

    assert counts() == (2, 2)
    for name in ("a", "b", "c"):
        (one / name).mkdir()
    write_file(one / "file", b"")
    assert counts() == (5, 2)
    os.rename(one / "a", two / "a")
    assert counts() == (4, 3)
    renameat2(one / "file", two / "a", EXCHANGE)
    assert counts() == (5, 2)
    os.rmdir(one / "b")
    os.rename(one / "c", one / "file")
    assert counts() == (3, 2)


@anyone
def symbolic_links(top: Path) -> None:
    os.symlink("target", top / "link")
    os.symlink(b"t" * 4095, os.fsencode(top / "long"))
    st = os.lstat(top / "link")
    assert stat.S_ISLNK(st.st_mode)
    assert st.st_size == 6
    assert os.readlink(top / "link") == "target"
    assert len(os.readlink(top / "long")) == 4095
    assert errno_of(os.stat, top / "link") == "ENOENT"
    write_file(top / "target", b"through")
    assert (top / "link").read_bytes() == b"through"
    assert errno_of(os.open, top / "link", os.O_RDONLY | os.O_NOFOLLOW) == "ELOOP"
    os.symlink("loop", top / "loop")
    assert errno_of(os.stat, top / "loop") == "ELOOP"
    os.utime(top / "link", ns=(1, 2), follow_symlinks=False)
    assert os.lstat(top / "link").st_mtime_ns == 2
    assert os.stat(top / "target").st_mtime_ns != 2
    os.rename(top / "link", top / "moved")
    assert os.readlink(top / "moved") == "target"
    os.link(top / "moved", top / "second", follow_symlinks=False)
    assert os.lstat(top / "second").st_nlink == 2
    os.unlink(top / "moved")
    assert os.readlink(top / "second") == "target"
    assert (top / "target").read_bytes() == b"through"


@anyone
def hard_links(top: Path) -> None:
    one, two, three = top / "one", top / "two", top / "d/three"
    (top / "d").mkdir()
    write_file(one, b"data")
    os.link(one, two)
    os.link(two, three)
    assert {os.stat(p).st_ino for p in (one, two, three)} == {os.stat(one).st_ino}
    assert {os.stat(p).st_nlink for p in (one, two, three)} == {3}
    write_file(three, b"changed")
    os.chmod(two, 0o600)
    assert one.read_bytes() == b"changed"
    assert stat.S_IMODE(os.stat(one).st_mode) == 0o600
    os.rename(one, two)  # two names of one file: nothing happens
    assert sorted(os.listdir(top)) == ["d", "one", "two"]
    os.unlink(one)
    assert os.stat(three).st_nlink == 2
    os.rename(three, two)
    os.unlink(two)
    assert three.read_bytes() == b"changed"
    assert os.stat(three).st_nlink == 1
    assert errno_of(os.link, top / "d", top / "x") == "EPERM"
    with opened(three, os.O_RDONLY) as fd:
        linkat(f"/proc/self/fd/{fd}", top / "again", AT_SYMLINK_FOLLOW)
    assert (top / "again").read_bytes() == b"changed"


@anyone
def renames(top: Path) -> None:
    for name in "abcd":
        (top / name).mkdir()
    write_file(top / "b/in", b"1")
    write_file(top / "f", b"f")
    os.rename(top / "b", top / "a")
    assert os.listdir(top / "a") == ["in"]
    inside = os.open(top / "a/in", os.O_RDWR)
    os.rename(top / "a", top / "c/deep")
    os.pwrite(inside, b"2", 0)
    os.close(inside)
    assert (top / "c/deep/in").read_bytes() == b"2"
    (top / "a").mkdir()
    assert os.listdir(top / "a") == []
    assert not (top / "a/in").exists()
    moved = os.stat(top / "f").st_ino
    os.rename(top / "f", top / "c/deep/in")
    assert os.stat(top / "c/deep/in").st_ino == moved
    os.rename(top / "c/deep", top / "e/")
    assert sorted(os.listdir(top)) == ["a", "c", "d", "e"]
    before = os.stat(top / "c").st_ctime_ns
    os.rename(top / "e", top / "c/e")
    assert os.stat(top / "c").st_mtime_ns >= before
    assert os.stat(top / "c/e/..").st_ino == os.stat(top / "c").st_ino


@anyone
def rename_noreplace(top: Path) -> None:
    write_file(top / "a", b"a")
    write_file(top / "b", b"b")
    assert errno_of(renameat2, top / "a", top / "b", NOREPLACE) == "EEXIST"
    assert errno_of(renameat2, top / "absent", top / "b", NOREPLACE) == "ENOENT"
    renameat2(top / "a", top / "c", NOREPLACE)
    assert sorted(os.listdir(top)) == ["b", "c"]
    assert (top / "c").read_bytes() == b"a"


@anyone
def rename_exchange(top: Path) -> None:
    write_file(top / "f", b"file")
    (top / "d").mkdir()
    write_file(top / "d/in", b"in")
    (top / "other").mkdir()
    os.symlink("nowhere", top / "other/link")
    renameat2(top / "f", top / "other/link", EXCHANGE)
    assert os.readlink(top / "f") == "nowhere"
    assert (top / "other/link").read_bytes() == b"file"
    renameat2(top / "d", top / "other/link", EXCHANGE)
    assert (top / "d").read_bytes() == b"file"
    assert (top / "other/link/in").read_bytes() == b"in"
    assert errno_of(renameat2, top / "d", top / "absent", EXCHANGE) == "ENOENT"
    assert errno_of(renameat2, top / "other", top / "other/link", EXCHANGE) == "EINVAL"
    assert errno_of(renameat2, top / "other/link", top / "other", EXCHANGE) == "EINVAL"
    assert errno_of(renameat2, top / "d", top / "f", EXCHANGE | NOREPLACE) == "EINVAL"


@anyone
def long_names(top: Path) -> None:
    for name in (b"n" * 255, "é".encode() * 127 + b"x", "漢".encode() * 85):
        path = os.fsencode(top) + b"/" + name
        write_file(path, name)
        assert os.listdir(os.fsencode(top)) == [name]
        os.rename(path, os.fsencode(top / "short"))
        os.rename(os.fsencode(top / "short"), path)
        os.unlink(path)
        os.mkdir(path)
        os.rmdir(path)
    write_file(top / "f", b"")
    too_long = top / ("m" * 256)
    for call in (os.stat, os.mkdir, os.unlink, os.rmdir, os.mkfifo):
        assert errno_of(call, too_long) == "ENAMETOOLONG", call
    assert errno_of(os.rename, top / "f", too_long) == "ENAMETOOLONG"
    assert errno_of(os.link, top / "f", too_long) == "ENAMETOOLONG"
    assert errno_of(os.symlink, "x", too_long) == "ENAMETOOLONG"
    assert errno_of(os.open, too_long, os.O_CREAT | os.O_WRONLY) == "ENAMETOOLONG"
    assert errno_of(os.symlink, "x" * 4096, top / "l") == "ENAMETOOLONG"


@anyone
def any_bytes_in_names(top: Path) -> None:
    raw = os.fsencode(top)
    names = [bytes([n]) for n in range(1, 256) if n != 0x2F and n != 0x2E]
    names += [b"\xff\xfe\x80", b"a\nb", b"caf\xc3\xa9", b"cafe\xcc\x81", b"...", b"-rf", b"%s%n"]
    for name in names:
        write_file(raw + b"/" + name, name)
    assert sorted(os.listdir(raw)) == sorted(names)
    for name in names:
        with opened(raw + b"/" + name) as fd:
            assert read_all(fd) == name
    os.symlink(b"\xff\xfe", raw + b"/\xe9link")
    assert os.readlink(raw + b"/\xe9link") == b"\xff\xfe"


@anyone
def paths_longer_than_path_max(top: Path) -> None:
    fd = os.open(top, os.O_RDONLY)
    name = "d" * 200
    for _ in range(30):
        os.mkdir(name, dir_fd=fd)
        below = os.open(name, os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    leaf = os.open("leaf", os.O_CREAT | os.O_WRONLY, dir_fd=fd)
    os.write(leaf, b"deep")
    os.close(leaf)
    assert os.stat("leaf", dir_fd=fd).st_size == 4
    os.close(fd)
    assert errno_of(os.stat, f"{top}{('/' + name) * 30}") == "ENAMETOOLONG"
    subprocess.run(["rm", "-rf", top / name], check=True)
    assert os.listdir(top) == []


@anyone
def names_like_markers(top: Path) -> None:
    names = [".wh.x", ".wh..wh..opq", ".fuse_hidden0000000100000001", "lost+found", ".git", ".nfs1"]
    write_file(top / "x", b"x")
    for name in names:
        write_file(top / name, name.encode())
        os.rename(top / name, top / "moved")
        os.rename(top / "moved", top / name)
    assert sorted(os.listdir(top)) == sorted([*names, "x"])
    for name in names:
        assert (top / name).read_text() == name
        os.unlink(top / name)


# -- listing ------------------------------------------------------------------------------------


@anyone
def types_and_numbers_in_listings(top: Path) -> None:
    write_file(top / "f", b"")
    os.link(top / "f", top / "hard")
    (top / "d").mkdir()
    os.symlink("f", top / "s")
    os.mkfifo(top / "p")
    with os.scandir(top) as entries:
        for entry in entries:
            st = os.lstat(entry.path)
            assert entry.inode() == st.st_ino
            assert entry.is_dir(follow_symlinks=False) == stat.S_ISDIR(st.st_mode)
            assert entry.is_file(follow_symlinks=False) == stat.S_ISREG(st.st_mode)
            assert entry.is_symlink() == stat.S_ISLNK(st.st_mode)
    assert os.stat(top / "d/..").st_ino == os.stat(top).st_ino


@anyone
def big_directory_while_it_is_emptied(top: Path) -> None:
    directory = top / "big"
    directory.mkdir()
    names = {f"file-with-a-rather-long-name-{i:05d}" for i in range(5000)}
    for name in names:
        os.mknod(directory / name)
    assert set(os.listdir(directory)) == names
    seen = []
    with os.scandir(directory) as entries:
        for entry in entries:
            seen.append(entry.name)
            os.unlink(entry.path)
    assert len(seen) == 5000
    assert set(seen) == names
    assert os.listdir(directory) == []
    os.rmdir(directory)


@anyone
def listing_while_entries_come_and_go(top: Path) -> None:
    """What is there all the time is returned exactly once."""
    stable = {b"stable%04d" % i for i in range(600)}
    raw = os.fsencode(top)
    for name in sorted(stable):
        os.mknod(raw + b"/" + name)
        os.mknod(raw + b"/" + name.replace(b"stable", b"gone"))
    stream = DirectoryStream(top)
    seen = []
    number = 0
    while (entry := stream.next()) is not None:
        seen.append(entry)
        if number < 600:
            os.unlink(raw + b"/gone%04d" % number)
            os.mknod(raw + b"/new%04d" % number)
            number += 1
    stream.close()
    found = [name for name in seen if name.startswith(b"stable")]
    assert len(found) == len(set(found))
    assert set(found) == stable
    assert len(seen) == len(set(seen))


@anyone
def seeking_in_directories(top: Path) -> None:
    for i in range(1000):
        os.mknod(top / f"f{i}")
    stream = DirectoryStream(top)
    places: list[tuple[int, bytes]] = []
    while True:
        place = stream.tell()
        found = stream.next()
        if found is None:
            break
        places.append((place, found))
    assert len(places) == 1002
    assert len({name for _, name in places}) == 1002
    for at in (700, 3, 999, 0, 500):
        stream.seek(places[at][0])
        assert stream.next() == places[at][1]
        assert stream.next() == (places[at + 1][1])
    stream.seek(places[600][0])
    assert len(stream.rest()) == len([n for _, n in places[600:] if n not in (b".", b"..")])
    stream.rewind()
    assert len(stream.rest()) == 1000
    os.mknod(top / "later")
    os.unlink(top / "f7")
    stream.rewind()
    rest = stream.rest()
    assert b"later" in rest
    assert b"f7" not in rest
    stream.close()


# -- special files ------------------------------------------------------------------------------


@anyone
def fifos(top: Path) -> None:
    path = top / "fifo"
    os.mkfifo(path, 0o600)
    assert stat.S_ISFIFO(os.stat(path).st_mode)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    with opened(path, os.O_WRONLY) as writer:
        os.write(writer, b"through")
    assert os.read(reader, 100) == b"through"
    assert os.read(reader, 100) == b""
    os.close(reader)
    assert errno_of(os.open, path, os.O_WRONLY | os.O_NONBLOCK) == "ENXIO"


@anyone
def sockets(top: Path) -> None:
    directory = os.open(top, os.O_RDONLY | os.O_DIRECTORY)
    short = f"/proc/self/fd/{directory}"
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client:
        server.bind(f"{short}/sock")
        server.listen(1)
        assert stat.S_ISSOCK(os.stat(top / "sock").st_mode)
        os.rename(top / "sock", top / "moved")
        client.connect(f"{short}/moved")
        accepted, _ = server.accept()
        client.send(b"hello")
        assert accepted.recv(10) == b"hello"
        accepted.close()
        assert errno_of(os.open, top / "moved", os.O_RDONLY) == "ENXIO"
        with socket.socket(socket.AF_UNIX) as second:
            assert errno_of(second.bind, f"{short}/moved") == "EADDRINUSE"
    with socket.socket(socket.AF_UNIX) as client:
        assert errno_of(client.connect, f"{short}/moved") == "ECONNREFUSED"
    os.unlink(top / "moved")
    os.close(directory)


@as_root
def devices(top: Path) -> None:
    null, zero, block = top / "null", top / "zero", top / "block"
    os.mknod(null, stat.S_IFCHR | 0o666, os.makedev(1, 3))
    os.mknod(zero, stat.S_IFCHR | 0o666, os.makedev(1, 5))
    os.mknod(block, stat.S_IFBLK | 0o600, os.makedev(259, 70_000))
    assert stat.S_ISCHR(os.stat(null).st_mode)
    assert os.stat(null).st_rdev == os.makedev(1, 3)
    assert stat.S_ISBLK(os.stat(block).st_mode)
    assert os.stat(block).st_rdev == os.makedev(259, 70_000)
    with opened(null, os.O_RDWR) as fd:
        assert os.write(fd, b"gone") == 4
        assert os.read(fd, 10) == b""
    with opened(zero) as fd:
        assert os.read(fd, 10) == bytes(10)
    assert errno_of(os.open, block, os.O_RDONLY) == "ENXIO"
    os.mknod(top / "plain", stat.S_IFREG | 0o640)
    assert (top / "plain").read_bytes() == b""


# -- attributes ---------------------------------------------------------------------------------


@anyone
def modes_and_umask(top: Path) -> None:
    old = os.umask(0o027)
    try:
        os.close(os.open(top / "f", os.O_CREAT | os.O_WRONLY, 0o666))
        os.mkdir(top / "d", 0o777)
        os.mkfifo(top / "p", 0o666)
    finally:
        os.umask(old)
    modes = [stat.S_IMODE(os.stat(top / name).st_mode) for name in "fdp"]
    assert modes == [0o640, 0o750, 0o640]
    with opened(top / "readonly", os.O_CREAT | os.O_RDWR, 0o444) as fd:
        assert os.write(fd, b"its maker may write") == 19
    before = os.stat(top / "f")
    for mode in (0, 0o7777, 0o4755, 0o2711, 0o1644, 0o600):
        os.chmod(top / "f", mode)
        # A group that the caller is not in would lose the setgid bit; this is its own.
        assert stat.S_IMODE(os.stat(top / "f").st_mode) == mode
    after = os.stat(top / "f")
    assert after.st_mtime_ns == before.st_mtime_ns
    assert after.st_ctime_ns >= before.st_ctime_ns


@anyone
def nanosecond_times(top: Path) -> None:
    path = top / "f"
    write_file(path, b"x")
    for ns in (0, 1, 999_999_999, 10**18 + 123_456_789, 2**31 * SECOND + 5, 2**32 * SECOND + 7):
        os.utime(path, ns=(ns + 1, ns))
        st = os.stat(path)
        assert (st.st_atime_ns, st.st_mtime_ns) == (ns + 1, ns)
    os.utime(top, ns=(3, 10**18 + 1))
    assert os.stat(top).st_mtime_ns == 10**18 + 1
    os.utime(path, ns=(7, -1 * SECOND))
    assert os.stat(path).st_mtime_ns == -SECOND


@anyone
def omitted_times(top: Path) -> None:
    path = top / "f"
    write_file(path, b"x")
    started = os.stat(path).st_ctime_ns
    utimensat(path, (1, 2), (3, 4))
    utimensat(path, (0, UTIME_OMIT), (5, 6))
    assert (os.stat(path).st_atime_ns, os.stat(path).st_mtime_ns) == (1_000_000_002, 5_000_000_006)
    utimensat(path, (7, 8), (0, UTIME_OMIT))
    assert (os.stat(path).st_atime_ns, os.stat(path).st_mtime_ns) == (7_000_000_008, 5_000_000_006)
    utimensat(path, (0, UTIME_OMIT), (0, UTIME_NOW))
    assert os.stat(path).st_atime_ns == 7_000_000_008
    assert os.stat(path).st_mtime_ns >= started
    ctime = os.stat(path).st_ctime_ns
    utimensat(path, (0, UTIME_OMIT), (0, UTIME_OMIT))
    assert os.stat(path).st_ctime_ns == ctime


@anyone
def times_kept_and_set(top: Path) -> None:
    """Which of mtime and ctime each call changes."""
    path = top / "f"
    write_file(path, b"content")

    def changed(call: Callable[[], object]) -> str:
        os.utime(path, ns=(SECOND, SECOND))
        os.utime(top, ns=(SECOND, SECOND))
        before = os.stat(path)
        call()
        after = os.stat(path)
        out = "m" if after.st_mtime_ns != before.st_mtime_ns else ""
        # The clock of times is coarse: only that it did not go back can be said of ctime.
        assert after.st_ctime_ns >= before.st_ctime_ns
        return out + ("d" if os.stat(top).st_mtime_ns != SECOND else "")

    assert changed(lambda: path.read_bytes()) == ""
    assert changed(lambda: os.chmod(path, 0o600)) == ""
    assert changed(lambda: os.truncate(path, 3)) == "m"
    with opened(path, os.O_RDWR) as fd:
        assert changed(lambda: os.ftruncate(fd, 3)) == "m"
    assert changed(lambda: write_file(path, b"")) == "m"
    # `> stamp` of a stamp that is empty already
    assert changed(lambda: os.close(os.open(path, os.O_WRONLY | os.O_TRUNC))) == "m"
    assert changed(lambda: write_file(path, b"new")) == "m"
    assert changed(lambda: os.link(path, top / "g")) == "d"
    assert changed(lambda: os.rename(top / "g", top / "h")) == "d"
    assert changed(lambda: os.unlink(top / "h")) == "d"
    assert changed(lambda: os.setxattr(path, "user.x", b"1")) == ""
    with opened(path, os.O_WRONLY) as fd:
        assert changed(lambda: os.write(fd, b"z")) == "m"
    assert changed(lambda: os.close(os.open(path, os.O_RDWR))) == ""


@anyone
def extended_attributes(top: Path) -> None:
    path, directory = top / "f", top / "d"
    write_file(path, b"")
    directory.mkdir()
    for place in (path, directory):
        os.setxattr(place, "user.one", b"1", os.XATTR_CREATE)
        assert errno_of(os.setxattr, place, "user.one", b"2", os.XATTR_CREATE) == "EEXIST"
        assert errno_of(os.setxattr, place, "user.two", b"2", os.XATTR_REPLACE) == "ENODATA"
        os.setxattr(place, "user.one", b"changed", os.XATTR_REPLACE)
        os.setxattr(place, "user.empty", b"")
        os.setxattr(place, "user.binary", bytes(range(256)))
        assert sorted(os.listxattr(place)) == ["user.binary", "user.empty", "user.one"]
        assert os.getxattr(place, "user.one") == b"changed"
        assert os.getxattr(place, "user.empty") == b""
        assert os.getxattr(place, "user.binary") == bytes(range(256))
        assert errno_of(os.getxattr, place, "user.absent") == "ENODATA"
        assert errno_of(os.removexattr, place, "user.absent") == "ENODATA"
        os.removexattr(place, "user.empty")
        assert sorted(os.listxattr(place)) == ["user.binary", "user.one"]
    os.rename(path, top / "g")
    assert os.getxattr(top / "g", "user.one") == b"changed"
    write_file(path, b"another")
    assert os.listxattr(path) == []
    os.symlink("g", top / "l")
    assert errno_of(os.setxattr, top / "l", "user.x", b"", follow_symlinks=False) == "EPERM"
    assert errno_of(os.setxattr, top / "g", "user." + "n" * 251, b"") == "ERANGE"
    assert errno_of(os.setxattr, top / "g", "user.x", bytes(65_537)) == "E2BIG"
    libc = ctypes.CDLL(None, use_errno=True)
    buffer = ctypes.create_string_buffer(4)
    assert libc.getxattr(os.fsencode(top / "g"), b"user.one", buffer, 4) == -1
    assert ctypes.get_errno() == errno.ERANGE
    assert libc.getxattr(os.fsencode(top / "g"), b"user.one", None, 0) == 7


@as_root
def privileged_attributes(top: Path) -> None:
    path = top / "f"
    write_file(path, b"", 0o755)
    # struct vfs_cap_data, revision 2: cap_net_raw=ep
    capability = bytes.fromhex("0100000200200000000000000000000000000000")
    os.setxattr(path, "security.capability", capability)
    os.setxattr(path, "trusted.note", b"root's")
    assert os.getxattr(path, "security.capability") == capability
    assert os.getxattr(path, "trusted.note") == b"root's"
    assert {"security.capability", "trusted.note"} <= set(os.listxattr(path))
    write_file(path, b"written")  # file capabilities do not survive a write
    assert errno_of(os.getxattr, path, "security.capability") == "ENODATA"
    assert os.getxattr(path, "trusted.note") == b"root's"
    os.setxattr(path, "security.capability", capability)
    os.chown(path, 1, 1)
    assert errno_of(os.getxattr, path, "security.capability") == "ENODATA"
    os.symlink("f", top / "l")
    os.setxattr(top / "l", "trusted.x", b"link's", follow_symlinks=False)
    assert os.getxattr(top / "l", "trusted.x", follow_symlinks=False) == b"link's"
    assert errno_of(os.getxattr, path, "trusted.x") == "ENODATA"


@as_root
def owners(top: Path) -> None:
    path = top / "f"
    write_file(path, b"", 0o6755)
    os.chown(path, 1234, -1)
    st = os.stat(path)
    assert (st.st_uid, st.st_gid) == (1234, 0)
    os.chown(path, -1, 2345)
    os.chown(path, 2**32 - 2, 2**31)
    st = os.stat(path)
    assert (st.st_uid, st.st_gid) == (2**32 - 2, 2**31)
    assert stat.S_IMODE(st.st_mode) == 0o755, "chown clears setuid and setgid, also for root"
    os.symlink("f", top / "l")
    os.lchown(top / "l", 5, 6)
    assert (os.lstat(top / "l").st_uid, os.stat(path).st_uid) == (5, 2**32 - 2)


# -- the rest -----------------------------------------------------------------------------------


@anyone
def locks(top: Path) -> None:
    path = top / "f"
    write_file(path, b"x" * 100)
    exclusive, shared = fcntl.LOCK_EX | fcntl.LOCK_NB, fcntl.LOCK_SH | fcntl.LOCK_NB
    with opened(path, os.O_RDWR) as one, opened(path, os.O_RDWR) as two:
        fcntl.flock(one, exclusive)
        assert errno_of(fcntl.flock, two, shared) == "EAGAIN"
        fcntl.flock(one, fcntl.LOCK_UN)
        fcntl.flock(one, shared)
        fcntl.flock(two, shared)
        fcntl.lockf(one, exclusive, 10, 0)

        def other() -> None:
            with opened(path, os.O_RDWR) as mine:
                assert errno_of(fcntl.lockf, mine, exclusive, 5, 5) == "EAGAIN"
                fcntl.lockf(mine, exclusive, 5, 10)

        in_child(other)


@anyone
def syncing(top: Path) -> None:
    path = top / "f"
    with opened(path, os.O_CREAT | os.O_RDWR | os.O_SYNC) as fd:
        os.write(fd, b"synchronous")
        os.fsync(fd)
        os.fdatasync(fd)
    with opened(path) as fd:
        os.fsync(fd)
    with opened(top, os.O_RDONLY | os.O_DIRECTORY) as fd:
        os.fsync(fd)
        os.fdatasync(fd)


@anyone
def copying(top: Path) -> None:
    source, target = top / "source", top / "target"
    data = random.Random(5).randbytes(300_000)
    write_file(source, data)
    write_file(target, b"o" * 100_000)
    target.read_bytes()
    with opened(source) as one, opened(target, os.O_RDWR) as two:
        done = 0
        while done < 200_000:
            done += os.copy_file_range(one, two, 200_000 - done, 1000 + done, 50_000 + done)
        assert read_all(two) == b"o" * 50_000 + data[1000:201_000]
        os.lseek(two, 0, os.SEEK_SET)
        assert os.sendfile(two, one, 0, 1000) == 1000
        assert os.pread(two, 1000, 0) == data[:1000]
    shutil.copytree(top, top / "copy")
    assert (top / "copy/source").read_bytes() == data
    with opened(target, os.O_RDWR) as fd:
        os.posix_fallocate(fd, 0, 400_000)
    assert os.stat(target).st_size == 400_000
    assert target.read_bytes()[250_000:] == bytes(150_000)


def unsupported(top: Path) -> None:
    """What there is no handler for fails with an error that says so. Only on a mount."""
    path = top / "f"
    with opened(path, os.O_CREAT | os.O_RDWR) as fd:
        for mode in (0x08, 0x20, 0x40):  # COLLAPSE_RANGE, INSERT_RANGE, UNSHARE_RANGE
            assert errno_of(fallocate, fd, mode, 0, 65536) == "ENOTSUP"
        assert os.fstat(fd).st_size == 0
        assert errno_of(fcntl.ioctl, fd, termios.TCGETS) == "ENOTTY"
    acl = bytes.fromhex("0200000001000600ffffffff04000400ffffffff20000400ffffffff")
    assert errno_of(os.setxattr, path, "system.posix_acl_access", acl) == "ENOTSUP"
