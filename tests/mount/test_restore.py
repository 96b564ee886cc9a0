"""Restore on a live mount (contract 3): what running processes see, and what nobody may see."""

from __future__ import annotations

import contextlib
import mmap
import os
import select
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import pytest

from tests.conftest import MountFunction
from tests.mount.calls import (
    AT_SYMLINK_FOLLOW,
    PAGE,
    DirectoryStream,
    Inotify,
    drop_caches,
    errno_of,
    eventually,
    linkat,
    opened,
    read_all,
    resident_pages,
    write_file,
)
from tests.mount.states import (
    SECOND,
    assert_same,
    fill_base,
    make_first,
    make_second,
    make_third,
    state_of,
)
from tests.support.mounting import Mounted


@pytest.fixture
def workspace(mount: MountFunction, base: Path) -> Iterator[Mounted]:
    """A mount over an empty directory. No restore failed to correct what the kernel keeps."""
    mounted = mount(base)
    yield mounted
    assert " WARNING " not in mounted.log(), mounted.log()


def changes(mounted: Mounted) -> tuple[int, int, int]:
    """(created, modified, deleted) since the last checkpoint, with all that the kernel holds."""
    counts = mounted.call("status", flush=True)["changes"]
    return counts["created"], counts["modified"], counts["deleted"]


def pages_in_memory(path: Path) -> int:
    """How many pages of a file are in the page cache."""
    with opened(path, os.O_RDWR) as fd, mmap.mmap(fd, 0) as mapping:
        return resident_pages(mapping)


def undo(mounted: Mounted) -> None:
    mounted.call("undo")


def redo(mounted: Mounted) -> None:
    mounted.call("redo")


# -- the whole tree -----------------------------------------------------------------------------


def test_everything_comes_back_and_goes_again(mount: MountFunction, base: Path) -> None:
    fill_base(base)
    mounted = mount(base)
    top = mounted.mountpoint
    make_first(top)
    states, ids = [state_of(top)], [mounted.checkpoint("first")]
    for make in (make_second, make_third):
        make(top)
        states.append(state_of(top))
        ids.append(mounted.checkpoint())
    for number in (0, 1, 2, 1, 0, 2, 0, 0):
        mounted.restore(ids[number])
        assert_same(state_of(top), states[number])
        assert changes(mounted) == (0, 0, 0)
    drop_caches()
    assert_same(state_of(top), states[0])
    assert changes(mounted) == (0, 0, 0)
    mounted.unmount()


def test_undo_and_redo_many_times(mount: MountFunction, base: Path) -> None:
    fill_base(base)
    mounted = mount(base)
    top = mounted.mountpoint
    make_first(top)
    first = state_of(top)
    checkpoint = mounted.checkpoint()
    make_second(top)
    second = state_of(top)
    mounted.restore(checkpoint)
    for _ in range(10):
        assert_same(state_of(top), first)
        undo(mounted)
        assert_same(state_of(top), second)
        redo(mounted)
    undo(mounted)
    # What is changed after an undo is not lost by the next restore either.
    (top / "precious").write_text("made after the undo")
    third = state_of(top)
    mounted.restore(checkpoint)
    assert_same(state_of(top), first)
    undo(mounted)
    assert_same(state_of(top), third)


def test_restored_state_survives_a_remount(mount: MountFunction, base: Path) -> None:
    fill_base(base)
    mounted = mount(base)
    top = mounted.mountpoint
    make_first(top)
    first = state_of(top)
    checkpoint = mounted.checkpoint()
    make_second(top)
    mounted.restore(checkpoint)
    mounted.unmount()
    again = mount(base)
    assert_same(state_of(again.mountpoint), first)
    assert changes(again) == (0, 0, 0)


def test_restoring_some_paths(mount: MountFunction, base: Path) -> None:
    fill_base(base)
    mounted = mount(base)
    top = mounted.mountpoint
    make_first(top)
    first, checkpoint = state_of(top), mounted.checkpoint()
    held = os.open(top / "grows", os.O_RDWR)
    make_second(top)
    second = state_of(top)
    paths = ["grows", "second", "goes", "dir", "base1", "becomes-dir", "becomes-file", "fresh"]
    answer = mounted.call("restore", checkpoint=checkpoint, paths=paths)
    assert answer["rescue"]["kind"] == "rescue"
    third = state_of(top)

    def restored(path: str) -> bool:
        return any(path == each or path.startswith(each + "/") for each in paths)

    ignored = {".", "stays", "third", "dir/hard"}  # the root, and link counts across the border
    right = {p: e for p, e in first.entries.items() if restored(p)}
    right |= {p: e for p, e in second.entries.items() if not restored(p)}
    found = {p: e for p, e in third.entries.items() if p not in ignored}
    same = {
        p: e._replace(ino=found[p].ino) if p in found else e
        for p, e in right.items()
        if p not in ignored
    }
    assert sorted(found) == sorted(same)
    wrong = [p for p in same if found[p] != same[p] and first.entries.get(p) != found[p]]
    assert not wrong, [(found[p], same[p]) for p in wrong]
    assert os.fstat(held).st_size == first.entries["grows"].size
    assert read_all(held) == b"grows" * 20_000
    assert (top / "dir/hard").read_bytes() == b"stays" * 20_000
    drop_caches()
    assert_same(state_of(top), third, but_ctime_of=("grows",))
    os.close(held)
    undo(mounted)
    assert_same(state_of(top), second, but_ctime_of=("grows", "second"))


# -- what did not change ------------------------------------------------------------------------


def test_unchanged_files_keep_their_pages(workspace: Mounted) -> None:
    top = workspace.mountpoint
    size = 50 * PAGE
    for number in range(10):
        write_file(top / f"f{number}", b"%d" % number * size)
    (top / "changed").write_text("first")
    canary = workspace.store.parent / "canary"
    write_file(canary, bytes(size))
    os.sync()
    checkpoint = workspace.checkpoint()
    before = {p.name: os.stat(p) for p in top.iterdir()}
    for number in range(10):
        (top / f"f{number}").read_bytes()
    write_file(top / "changed", b"second")
    write_file(top / "f0", b"changed too")
    workspace.restore(checkpoint)
    for number in range(10):
        path = top / f"f{number}"
        kept = pages_in_memory(path)
        if kept == 0 and pages_in_memory(canary) < size // PAGE:
            pytest.skip("something else on this machine dropped the page cache meanwhile")
        assert kept == (0 if number == 0 else size // PAGE), path
        now = os.stat(path)
        was = before[path.name]
        assert (now.st_ino, now.st_mtime_ns, now.st_ctime_ns, now.st_size) == (
            was.st_ino,
            was.st_mtime_ns,
            was.st_ctime_ns,
            was.st_size,
        )
        assert path.read_bytes() == b"%d" % number * size


def test_make_builds_only_what_changed(workspace: Mounted) -> None:
    if not shutil.which("make"):
        pytest.skip("make is not installed")
    top = workspace.mountpoint
    (top / "Makefile").write_text("all: x.o y.o\n%.o: %.c\n\tcp $< $@\n")
    for name in ("x.c", "y.c"):
        (top / name).write_text("first")
        os.utime(top / name, ns=(SECOND, SECOND))

    def build() -> str:
        return subprocess.check_output(["make", "-C", top], text=True)

    assert build().count("cp ") == 2
    checkpoint = workspace.checkpoint()
    (top / "x.c").write_text("second")
    assert build().count("cp ") == 1
    workspace.restore(checkpoint)
    assert "cp " not in build()
    assert (top / "x.o").read_text() == "first"
    (top / "y.c").write_text("changed")
    assert build().count("cp ") == 1


def test_sizes_past_four_gibibytes(workspace: Mounted) -> None:
    path = workspace.mountpoint / "f"
    with opened(path, os.O_CREAT | os.O_RDWR) as fd:
        os.pwrite(fd, b"far", 5 << 30)
        checkpoint = workspace.checkpoint()
        os.ftruncate(fd, 100)
        workspace.restore(checkpoint)
        assert os.fstat(fd).st_size == (5 << 30) + 3
        assert os.pread(fd, 10, 5 << 30) == b"far"
        undo(workspace)
        assert os.fstat(fd).st_size == 100
        redo(workspace)
    assert os.stat(path).st_size == (5 << 30) + 3
    assert changes(workspace) == (0, 0, 0)


# -- open files ---------------------------------------------------------------------------------

SIZES = [(100_000, 300_000), (300_000, 100_000), (100_000, 100_000), (0, 5000), (5000, 0)]


@pytest.mark.parametrize(("first", "second"), SIZES)
@pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_RDWR, os.O_WRONLY | os.O_APPEND])
def test_open_file_shows_the_restored_content(
    workspace: Mounted, first: int, second: int, flags: int
) -> None:
    path = workspace.mountpoint / "f"
    write_file(path, b"1" * first)
    os.utime(path, ns=(SECOND, SECOND))
    checkpoint = workspace.checkpoint()
    fd = os.open(path, flags)
    reader = os.open(path, os.O_RDONLY)
    write_file(path, b"2" * second)
    assert read_all(reader) == b"2" * second
    os.lseek(reader, second // 2, os.SEEK_SET)
    workspace.restore(checkpoint)
    for handle in (fd, reader):
        st = os.fstat(handle)
        assert (st.st_size, st.st_mtime_ns) == (first, SECOND)
    assert os.stat(path).st_mtime_ns == SECOND
    assert read_all(reader) == b"1" * first
    assert os.lseek(reader, 0, os.SEEK_CUR) == second // 2, "its offset is the process's"
    assert os.lseek(reader, 0, os.SEEK_END) == first
    assert changes(workspace) == (0, 0, 0)
    os.close(fd)
    os.close(reader)
    assert changes(workspace) == (0, 0, 0)
    assert (os.stat(path).st_size, os.stat(path).st_mtime_ns) == (first, SECOND)
    assert path.read_bytes() == b"1" * first


def test_open_file_shows_restored_mode_and_owner(workspace: Mounted) -> None:
    path = workspace.mountpoint / "f"
    write_file(path, b"data", 0o640)
    checkpoint = workspace.checkpoint()
    with opened(path) as fd:
        os.fchmod(fd, 0o755)
        if os.geteuid() == 0:
            os.fchown(fd, 1, 2)
        os.setxattr(path, "user.x", b"1")
        workspace.restore(checkpoint)
        st = os.fstat(fd)
        assert stat.S_IMODE(st.st_mode) == 0o640
        assert (st.st_uid, st.st_gid) == (os.geteuid(), os.getegid())
        assert os.listxattr(fd) == []


def test_writes_through_an_old_handle_go_to_the_restored_file(workspace: Mounted) -> None:
    path = workspace.mountpoint / "f"
    write_file(path, b"first " * 20_000)
    checkpoint = workspace.checkpoint()
    writer = os.open(path, os.O_RDWR)
    appender = os.open(path, os.O_WRONLY | os.O_APPEND)
    os.pwrite(writer, b"second" * 30_000, 0)
    workspace.restore(checkpoint)
    os.pwrite(writer, b"W", 65_536)
    os.write(appender, b"end")
    expected = bytearray(b"first " * 20_000 + b"end")
    expected[65_536:65_537] = b"W"
    assert path.read_bytes() == expected
    assert read_all(writer) == expected
    assert changes(workspace) == (0, 1, 0)
    os.close(writer)
    os.close(appender)
    drop_caches()
    assert path.read_bytes() == expected
    workspace.restore(checkpoint)
    assert path.read_bytes() == b"first " * 20_000


def test_unflushed_writes_go_to_the_rescue_and_never_come_back(workspace: Mounted) -> None:
    path = workspace.mountpoint / "f"
    write_file(path, b"first" * 1000)
    first = state_of(workspace.mountpoint)
    checkpoint = workspace.checkpoint()
    fd = os.open(path, os.O_RDWR)
    dirty = os.urandom(1 << 16) * 200
    os.pwrite(fd, dirty, 0)
    workspace.restore(checkpoint)
    assert path.read_bytes() == b"first" * 1000
    os.fsync(fd)
    drop_caches()
    assert path.read_bytes() == b"first" * 1000
    assert changes(workspace) == (0, 0, 0)
    os.close(fd)
    assert changes(workspace) == (0, 0, 0)
    assert_same(state_of(workspace.mountpoint), first, but_ctime_of=("f",))
    undo(workspace)
    assert path.read_bytes() == dirty


@pytest.mark.parametrize("mode", [0o444, 0o200, 0o000])
def test_open_file_with_a_forbidding_mode(workspace: Mounted, mode: int) -> None:
    path = workspace.mountpoint / "f"
    write_file(path, b"1" * 1000, mode)
    os.utime(path, ns=(SECOND, SECOND))
    checkpoint = workspace.checkpoint()
    path.chmod(0o600)
    with opened(path, os.O_RDWR) as fd:
        os.pwrite(fd, b"2" * 5000, 0)
        workspace.restore(checkpoint)
        st = os.fstat(fd)
        assert (st.st_size, st.st_mtime_ns, stat.S_IMODE(st.st_mode)) == (1000, SECOND, mode)
        assert read_all(fd) == b"1" * 1000
    assert changes(workspace) == (0, 0, 0)


def test_times_of_a_file_that_was_held_are_right_once_it_is_closed(workspace: Mounted) -> None:
    path = workspace.mountpoint / "f"
    write_file(path, b"1" * 1000)
    checkpoint = workspace.checkpoint()
    right = os.stat(path)
    for second in (b"2" * 5000, b"2" * 1000):
        with opened(path, os.O_RDWR) as fd:
            os.pwrite(fd, second, 0)
            workspace.restore(checkpoint)
            assert os.fstat(fd).st_mtime_ns == right.st_mtime_ns
        eventually(lambda: os.stat(path).st_ctime_ns == right.st_ctime_ns)
        assert os.stat(path).st_mtime_ns == right.st_mtime_ns


def test_open_path_descriptor(workspace: Mounted) -> None:
    """O_PATH holds the inode without a handle."""
    path = workspace.mountpoint / "f"
    write_file(path, b"1" * 1000)
    os.utime(path, ns=(SECOND, SECOND))
    checkpoint = workspace.checkpoint()
    with opened(path, os.O_PATH) as fd:
        write_file(path, b"2" * 5000)
        workspace.restore(checkpoint)
        for st in (os.fstat(fd), os.stat(path)):
            assert (st.st_size, st.st_mtime_ns) == (1000, SECOND)
        with opened(f"/proc/self/fd/{fd}") as again:
            assert read_all(again) == b"1" * 1000
    assert changes(workspace) == (0, 0, 0)


def test_running_program_whose_file_changes(workspace: Mounted) -> None:
    """Nobody can open it for writing while it runs, so nobody can correct its size then."""
    path = workspace.mountpoint / "program"
    shutil.copy(shutil.which("cat") or "/bin/cat", path)
    shorter = path.read_bytes()
    os.utime(path, ns=(SECOND, SECOND))
    checkpoint = workspace.checkpoint()
    with opened(path, os.O_WRONLY | os.O_APPEND) as fd:
        os.write(fd, b"padding" * 10_000)
    with subprocess.Popen([path], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as running:
        assert running.stdin is not None
        assert running.stdout is not None
        running.stdin.write(b"x")
        running.stdin.flush()
        assert running.stdout.read(1) == b"x"  # it runs
        workspace.restore(checkpoint)
        assert path.read_bytes()[: len(shorter)] == shorter
        running.stdin.write(b"y")
        running.stdin.close()
        assert running.stdout.read() == b"y"
    eventually(lambda: os.stat(path).st_size == len(shorter))
    assert os.stat(path).st_mtime_ns == SECOND
    assert path.read_bytes() == shorter
    assert changes(workspace) == (0, 0, 0)


def test_inotify_watch_holds_an_inode(workspace: Mounted) -> None:
    path, directory = workspace.mountpoint / "f", workspace.mountpoint / "d"
    directory.mkdir()
    write_file(path, b"1" * 1000)
    write_file(directory / "in", b"1")
    for changed in (path, directory):
        os.utime(changed, ns=(SECOND, SECOND))
    checkpoint = workspace.checkpoint()
    watcher = Inotify()
    for held in (path, directory, directory / "in"):
        watcher.watch(held)
    write_file(path, b"2" * 5000)
    os.unlink(directory / "in")
    write_file(directory / "new", b"")
    watcher.events()
    workspace.restore(checkpoint)
    st = os.stat(path)
    assert (st.st_size, st.st_mtime_ns) == (1000, SECOND)
    assert path.read_bytes() == b"1" * 1000
    assert os.listdir(directory) == ["in"]
    assert os.stat(directory).st_mtime_ns == SECOND
    assert (directory / "in").read_bytes() == b"1"
    watcher.events()
    write_file(path, b"written after the restore")
    assert Inotify.MODIFY in [mask for mask, _ in watcher.events()], "the watch still works"
    watcher.close()


def test_watchers_are_told(workspace: Mounted) -> None:
    top = workspace.mountpoint
    for name in ("changed", "goes", "mode", "stays", "other"):
        write_file(top / name, b"1" * 1000)
    (top / "d/e").mkdir(parents=True)
    write_file(top / "d/in", b"in")
    os.symlink("stays", top / "link")
    first, checkpoint = state_of(top), workspace.checkpoint()
    write_file(top / "changed", b"2" * 500)
    os.unlink(top / "goes")
    (top / "mode").chmod(0o600)
    write_file(top / "new", b"new")
    (top / "newdir").mkdir()
    os.rmdir(top / "d/e")
    write_file(top / "d/in", b"IN")
    os.unlink(top / "link")
    os.symlink("elsewhere", top / "link")
    os.rename(top / "other", top / "moved")
    second = state_of(top)
    watcher = Inotify()
    watcher.watch(top)
    watcher.watch(top / "d")
    for restored in (first, second, first, second, first):
        watcher.events()
        if restored is first:
            workspace.restore(checkpoint)
            came, went = {b"goes", b"link", b"other", b"e"}, {b"new", b"newdir", b"link", b"moved"}
        else:
            undo(workspace)
            came, went = {b"new", b"newdir", b"link", b"moved"}, {b"goes", b"link", b"other", b"e"}
        events = watcher.events()

        def names(mask: int, among: list[tuple[int, bytes]] = events) -> set[bytes]:
            return {name for found, name in among if found & mask}

        assert came <= names(Inotify.CREATE | Inotify.MOVED_TO)
        assert went <= names(Inotify.DELETE | Inotify.MOVED_FROM)
        assert {b"changed", b"in"} <= names(Inotify.MODIFY)
        assert {b"changed", b"in"} <= names(Inotify.CLOSE_WRITE)
        assert b"mode" in names(Inotify.ATTRIB | Inotify.MODIFY)
        assert b"stays" not in names(0xFFF)
        assert_same(state_of(top), restored, but_ctime_of=("changed", "d/in", "mode"))
        assert changes(workspace) == (0, 0, 0)
    watcher.close()
    assert_same(state_of(top), first, but_ctime_of=("changed", "d/in", "mode"))


def test_everything_comes_back_under_watch(mount: MountFunction, base: Path) -> None:
    """Telling watchers makes calls through the mount; nothing of them may stay."""
    fill_base(base)
    mounted = mount(base)
    top = mounted.mountpoint
    make_first(top)
    states, ids = [state_of(top)], [mounted.checkpoint()]
    watcher = Inotify()

    def watch_all() -> None:
        for directory, _, names in os.walk(top):
            watcher.watch(directory)
            for name in names:
                path = os.path.join(directory, name)
                if not os.path.islink(path):
                    watcher.watch(path)

    for make in (make_second, make_third):
        watch_all()
        make(top)
        states.append(state_of(top))
        ids.append(mounted.checkpoint())
    for number in (0, 1, 2, 1, 0, 2, 0):
        watch_all()
        mounted.restore(ids[number])
        found = state_of(top)
        assert_same(found, states[number], but_ctime_of=tuple(found.ctimes))
        assert changes(mounted) == (0, 0, 0)
    watcher.close()
    mounted.restore(ids[2])
    mounted.restore(ids[0])
    found = state_of(top)
    assert_same(found, states[0], but_ctime_of=tuple(found.ctimes))


# -- files that the restored state does not have ------------------------------------------------


@pytest.mark.parametrize("flushed", [False, True])
def test_open_file_that_the_restored_state_does_not_have(workspace: Mounted, flushed: bool) -> None:
    top = workspace.mountpoint
    (top / "stays").write_text("stays")
    before = state_of(top)
    checkpoint = workspace.checkpoint()
    (top / "d").mkdir()
    path = top / "d/new"
    content = bytearray(os.urandom(200_000))
    fd = os.open(path, os.O_CREAT | os.O_RDWR)
    os.pwrite(fd, content, 0)
    if flushed:
        workspace.checkpoint()
    workspace.restore(checkpoint)
    assert not path.exists()
    assert read_all(fd) == content
    st = os.fstat(fd)
    assert (st.st_nlink, st.st_size) == (0, len(content))
    # It goes on as an unlinked file does.
    os.pwrite(fd, b"written after", 100_000)
    content[100_000:100_013] = b"written after"
    os.ftruncate(fd, 150_000)
    os.ftruncate(fd, 180_000)
    content[150_000:] = bytes(30_000)
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    assert read_all(fd) == content
    assert errno_of(linkat, f"/proc/self/fd/{fd}", top / "x", AT_SYMLINK_FOLLOW) == "ENOENT"
    with opened(f"/proc/self/fd/{fd}", os.O_RDWR) as again:
        assert read_all(again) == content
    # A new file of the same name is another one.
    write_file(top / "other", b"another")
    os.rename(top / "other", top / "new")
    assert read_all(fd) == content
    os.unlink(top / "new")
    os.utime(top, ns=(0, before.entries["."].mtime_ns))
    os.close(fd)
    drop_caches()
    assert_same(state_of(top), before, but_ctime_of=(".",))


def test_what_was_written_to_a_lost_file_is_not_in_the_undone_state(workspace: Mounted) -> None:
    top = workspace.mountpoint
    checkpoint = workspace.checkpoint()
    path = top / "new"
    fd = os.open(path, os.O_CREAT | os.O_RDWR)
    os.pwrite(fd, b"before " * 30_000, 0)
    workspace.restore(checkpoint)
    os.pwrite(fd, b"AFTER" * 30_000, 5)
    os.ftruncate(fd, 1 << 20)
    os.fsync(fd)
    undo(workspace)
    assert path.read_bytes() == b"before " * 30_000
    assert read_all(fd) == b"before " * 30_000, "the handle is on a file of this state again"
    assert os.fstat(fd).st_nlink == 1
    assert os.fstat(fd).st_size == os.stat(path).st_size == 210_000
    os.pwrite(fd, b"now it counts", 0)
    assert path.read_bytes().startswith(b"now it counts")
    os.close(fd)
    redo(workspace)
    assert os.listdir(top) == []


def test_unlinked_open_file_comes_back(workspace: Mounted) -> None:
    path = workspace.mountpoint / "f"
    write_file(path, b"first" * 20_000)
    os.utime(path, ns=(SECOND, SECOND))
    checkpoint = workspace.checkpoint()
    fd = os.open(path, os.O_RDWR)
    os.unlink(path)
    os.pwrite(fd, b"second" * 40_000, 3)
    workspace.restore(checkpoint)
    for st in (os.fstat(fd), os.stat(path)):
        assert (st.st_nlink, st.st_size, st.st_mtime_ns) == (1, 100_000, SECOND)
    assert os.fstat(fd).st_ino == os.stat(path).st_ino
    assert path.read_bytes() == b"first" * 20_000 == read_all(fd)
    assert changes(workspace) == (0, 0, 0)
    os.close(fd)
    assert changes(workspace) == (0, 0, 0)
    assert path.read_bytes() == b"first" * 20_000


def test_a_lost_file_of_the_base_keeps_its_content(mount: MountFunction, base: Path) -> None:
    """Made known by a rename only: its blocks are still in the base directory."""
    write_file(base / "f", b"from the base" * 10_000)
    mounted = mount(base)
    top = mounted.mountpoint
    os.unlink(top / "f")
    without = mounted.checkpoint()
    undo_to = state_of(top)
    start = mounted.call("status")["last_checkpoint"]["id"]
    assert start == without
    mounted_log = [c for c in _checkpoints(mounted) if c["kind"] == "start"]
    mounted.restore(mounted_log[0]["id"])
    with opened(top / "f", os.O_RDWR) as fd:
        assert os.pread(fd, 5, 0) == b"from "
        os.pwrite(fd, b"WRITTEN", 70_000)
        mounted.restore(without)
        expected = bytearray(b"from the base" * 10_000)
        expected[70_000:70_007] = b"WRITTEN"
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        assert read_all(fd) == expected
        assert os.listdir(top) == []
    assert_same(state_of(top), undo_to)


def _checkpoints(mounted: Mounted) -> list[dict[str, str]]:
    """All checkpoints, from the store."""
    from cowfs.format import records
    from cowfs.service.selectors import all_checkpoints
    from cowfs.service.workspace import reading

    mounted.call("flush")
    with reading(mounted.store, None) as found:
        return [records.to_dict(record) for record in all_checkpoints(found.reader)]


# -- mappings -----------------------------------------------------------------------------------


@pytest.mark.parametrize("dirty", [False, True])
def test_shared_mapping_shows_the_restored_bytes(workspace: Mounted, dirty: bool) -> None:
    path = workspace.mountpoint / "f"
    write_file(path, b"1" * 64 * PAGE)
    os.utime(path, ns=(SECOND, SECOND))
    checkpoint = workspace.checkpoint()
    with opened(path, os.O_RDWR) as fd:
        mapping = mmap.mmap(fd, 64 * PAGE)
        private = mmap.mmap(fd, 64 * PAGE, access=mmap.ACCESS_COPY)
    assert private[:] == b"1" * 64 * PAGE
    private[0:4] = b"mine"
    if dirty:
        mapping[:] = b"2" * 64 * PAGE
    else:
        with opened(path, os.O_WRONLY) as fd:
            os.pwrite(fd, b"2" * 64 * PAGE, 0)
    assert mapping[5 * PAGE] == ord("2")
    workspace.restore(checkpoint)
    assert mapping[:] == b"1" * 64 * PAGE
    assert private[:] == b"mine" + b"1" * (64 * PAGE - 4)
    assert path.read_bytes() == b"1" * 64 * PAGE
    assert os.stat(path).st_mtime_ns == SECOND
    drop_caches()
    assert changes(workspace) == (0, 0, 0)
    mapping[3 * PAGE] = ord("3")
    assert path.read_bytes()[3 * PAGE] == ord("3")
    assert changes(workspace) == (0, 1, 0)
    undo(workspace)
    assert mapping[:] == b"2" * 64 * PAGE
    mapping.close()
    private.close()
    undo_state = path.read_bytes()
    assert undo_state == b"2" * 64 * PAGE


def test_mapping_past_the_restored_end(workspace: Mounted) -> None:
    path = workspace.mountpoint / "f"
    write_file(path, b"1" * (PAGE + 10))
    checkpoint = workspace.checkpoint()
    write_file(path, b"2" * 8 * PAGE)
    with opened(path, os.O_RDWR) as fd, mmap.mmap(fd, 8 * PAGE) as mapping:
        assert mapping[:] == b"2" * 8 * PAGE
        workspace.restore(checkpoint)
        assert mapping[: 2 * PAGE] == b"1" * (PAGE + 10) + bytes(PAGE - 10)
        pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGBUS, signal.SIG_DFL)
            os._exit(mapping[5 * PAGE] + 1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGBUS
        os.ftruncate(fd, 8 * PAGE)
        assert mapping[PAGE + 10 :] == bytes(7 * PAGE - 10)


def test_mapping_of_a_file_that_the_restored_state_does_not_have(workspace: Mounted) -> None:
    path = workspace.mountpoint / "f"
    checkpoint = workspace.checkpoint()
    write_file(path, b"2" * 8 * PAGE)
    with opened(path, os.O_RDWR) as fd:
        mapping = mmap.mmap(fd, 8 * PAGE)
    mapping[0:5] = b"dirty"
    workspace.restore(checkpoint)
    assert mapping[:] == b"dirty" + b"2" * (8 * PAGE - 5)
    mapping[PAGE : PAGE + 5] = b"after"
    mapping.flush()
    assert mapping[PAGE : PAGE + 6] == b"after2"
    mapping.close()
    assert os.listdir(workspace.mountpoint) == []
    assert changes(workspace) == (0, 0, 0)


# -- directories --------------------------------------------------------------------------------


def test_working_directory_that_stays(workspace: Mounted) -> None:
    directory = workspace.mountpoint / "a/b"
    directory.mkdir(parents=True)
    write_file(directory / "f", b"first")
    checkpoint = workspace.checkpoint()
    with shell(directory) as sh:
        assert sh.run("pwd -P; cat f") == f"{directory}\nfirst"
        write_file(directory / "f", b"second")
        write_file(directory / "new", b"")
        assert sh.run("cat f; ls") == "secondf\nnew"
        workspace.restore(checkpoint)
        assert sh.run("pwd -P; /bin/pwd; cat f; ls") == f"{directory}\n{directory}\nfirstf"
        assert sh.run("echo made > made && cat made && rm made; ls ..") == "made\nb"


def test_working_directory_that_goes_and_comes_back(workspace: Mounted) -> None:
    top = workspace.mountpoint
    before = workspace.checkpoint()
    (top / "a/b").mkdir(parents=True)
    write_file(top / "a/b/f", b"content")
    with shell(top / "a/b") as sh:
        assert sh.run("ls") == "f"
        workspace.restore(before)
        assert os.listdir(top) == []
        assert sh.run("{ echo x > new; mkdir d; ls; } 2>/dev/null") == ""
        assert sh.run("{ /bin/pwd; cat f; } 2>/dev/null; echo $?") == "1"
        assert os.listdir(top) == []
        undo(workspace)
        assert os.listdir(top / "a/b") == ["f"]
        assert sh.run("ls; cat f; /bin/pwd") == f"f\ncontent{top}/a/b"
        assert sh.run("echo again > g; ls") == "f\ng"


def test_removed_working_directory_comes_back(workspace: Mounted) -> None:
    """`rm -rf` of the directory that a shell is in, then a restore: the everyday accident."""
    top = workspace.mountpoint
    (top / "src/sub").mkdir(parents=True)
    write_file(top / "src/f", b"content")
    before = state_of(top)
    checkpoint = workspace.checkpoint()
    with shell(top / "src") as sh, shell(top / "src/sub") as deeper:
        shutil.rmtree(top / "src")
        assert sh.run("ls 2>/dev/null; cat f 2>/dev/null; echo $?") == "1"
        workspace.restore(checkpoint)
        # Everybody else, at once:
        assert sorted(os.listdir(top / "src")) == ["f", "sub"]
        assert_same(state_of(top), before)
        write_file(top / "src/new", b"new")
        os.mkdir(top / "src/sub/newer")
        assert sorted(os.listdir(top / "src")) == ["f", "new", "sub"]
        assert os.listdir(top / "src/sub") == ["newer"]
        # The shells, at the latest when they come in again:
        for each in (sh, deeper):
            assert each.run("cd $PWD") == ""
        assert sh.run("ls; /bin/pwd") == f"f\nnew\nsub\n{top}/src"
        assert deeper.run("echo x > y; ls") == "newer\ny"


def test_open_directory_shows_the_restored_listing(workspace: Mounted) -> None:
    top = workspace.mountpoint
    (top / "d").mkdir()
    for number in range(200):
        write_file(top / f"d/old{number}", b"")
    checkpoint = workspace.checkpoint()
    shutil.rmtree(top / "d")
    (top / "d").mkdir()
    undo_checkpoint = workspace.checkpoint()
    workspace.restore(checkpoint)
    stream = DirectoryStream(top / "d")
    fd = os.open(top / "d", os.O_RDONLY | os.O_DIRECTORY)
    for _ in range(10):
        stream.next()
    for number in range(200):
        os.unlink(top / f"d/old{number}")
        write_file(top / f"d/new{number}", b"")
    workspace.restore(checkpoint)
    rest = stream.rest()  # goes on in the listing that it began
    assert all(name.startswith(b"old") for name in rest)
    stream.rewind()
    assert set(stream.rest()) == {b"old%d" % n for n in range(200)}
    assert set(os.listdir(fd)) == {f"old{n}" for n in range(200)}
    assert os.stat("old7", dir_fd=fd).st_size == 0
    assert errno_of(os.stat, "new7", dir_fd=fd) == "ENOENT"
    workspace.restore(undo_checkpoint)
    stream.rewind()
    assert stream.rest() == [], "this directory does not exist any more"
    assert os.listdir(top / "d") == []
    assert errno_of(os.open, "x", os.O_CREAT | os.O_WRONLY, dir_fd=fd) == "ENOENT"
    assert os.fstat(fd).st_nlink == 0
    stream.close()
    os.close(fd)


def _directory_with_a_file(path: Path) -> None:
    path.mkdir()
    (path / "in").write_text("in")


def test_names_become_other_things(workspace: Mounted) -> None:
    """Every type takes the place of every other, looked at before and after."""
    top = workspace.mountpoint
    kinds: dict[str, Callable[[Path], object]] = {
        "file": lambda p: p.write_text("file"),
        "dir": _directory_with_a_file,
        "link": lambda p: p.symlink_to("nowhere"),
        "fifo": os.mkfifo,
        "absent": lambda p: None,
        "another": lambda p: p.write_text("another file"),
    }
    pairs = [(a, b) for a in kinds for b in kinds]
    for one, two in pairs:
        kinds[one](top / f"{one}-{two}")
    first, checkpoint = state_of(top), workspace.checkpoint()
    for one, two in pairs:
        path = top / f"{one}-{two}"
        if path.is_dir():
            shutil.rmtree(path)
        elif one != "absent":
            path.unlink()
        kinds[two](path)
    second, other = state_of(top), workspace.checkpoint()
    for _ in range(3):
        workspace.restore(checkpoint)
        assert_same(state_of(top), first)
        workspace.restore(other)
        assert_same(state_of(top), second)


def test_hard_links_made_and_removed(workspace: Mounted) -> None:
    top = workspace.mountpoint
    write_file(top / "a", b"shared")
    os.link(top / "a", top / "b")
    (top / "d").mkdir()
    first, checkpoint = state_of(top), workspace.checkpoint()
    with opened(top / "a") as fd:
        os.unlink(top / "a")
        os.link(top / "b", top / "d/c")
        os.link(top / "b", top / "e")
        write_file(top / "a", b"another one")
        assert os.fstat(fd).st_nlink == 3
        second = state_of(top)
        workspace.restore(checkpoint)
        assert os.fstat(fd).st_nlink == 2
        write_file(top / "b", b"through b")
        assert (top / "a").read_bytes() == b"through b" == read_all(fd)
        undo(workspace)
        assert os.fstat(fd).st_nlink == 3
    assert_same(state_of(top), second, but_ctime_of=("b", "d/c", "e"))
    redo(workspace)
    workspace.restore(checkpoint)
    assert_same(state_of(top), first)


# -- programs that follow a file ----------------------------------------------------------------


class Reader:
    """Lines of a pipe, waited for."""

    def __init__(self, pipe: IO[bytes]) -> None:
        self._fd = pipe.fileno()
        self._seen = b""

    def until(self, text: bytes, seconds: float = 20) -> bytes:
        """Everything up to the text. Raises AssertionError when it does not come."""
        end = time.monotonic() + seconds
        while text not in self._seen:
            left = end - time.monotonic()
            if left <= 0 or not select.select([self._fd], [], [], left)[0]:
                raise AssertionError(f"{text!r} did not come, but {self._seen!r}")
            piece = os.read(self._fd, 1 << 16)
            if not piece:
                raise AssertionError(f"{text!r} did not come before the end: {self._seen!r}")
            self._seen += piece
        before, _, self._seen = self._seen.partition(text)
        return before + text


class Shell:
    """A running shell, one command after the other."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        assert process.stdout is not None
        self._reader = Reader(process.stdout)

    def run(self, command: str) -> str:
        """The command's output (both streams), without the last newline."""
        assert self.process.stdin is not None
        self.process.stdin.write(command.encode() + b"\necho @@end@@\n")
        self.process.stdin.flush()
        out = self._reader.until(b"@@end@@\n").removesuffix(b"@@end@@\n")
        return out.decode().removesuffix("\n")


class shell:  # noqa: N801  (used like a function)
    """A shell whose working directory is `directory`, ended with the block."""

    def __init__(self, directory: Path) -> None:
        self._process = subprocess.Popen(
            ["/bin/sh"],
            cwd=directory,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={"PATH": os.environ["PATH"], "LC_ALL": "C", "PWD": str(directory)},
        )

    def __enter__(self) -> Shell:
        shell = Shell(self._process)
        assert shell.run(":") == ""  # it knows where it is from now on
        return shell

    def __exit__(self, *exc: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.kill()
        self._process.wait()
        self._process.stdin.close()
        self._process.stdout.close()


def _following(*options: str, path: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        ["tail", "-n", "+1", *options, str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd="/",
    )


@pytest.mark.parametrize("options", [["-f"], ["-F", "---disable-inotify", "-s", "0.05"]])
def test_tail_goes_on(workspace: Mounted, options: list[str]) -> None:
    path = workspace.mountpoint / "log"
    write_file(path, b"line 1\nline 2\n")
    checkpoint = workspace.checkpoint()
    with _following(*options, path=path) as tail:
        try:
            assert tail.stdout is not None
            reader = Reader(tail.stdout)
            reader.until(b"line 2\n")
            with opened(path, os.O_WRONLY | os.O_APPEND) as fd:
                undone = b"line 3, to be undone, and longer than what comes after the restore\n"
                os.write(fd, undone)
                reader.until(undone)
                workspace.restore(checkpoint)
                os.write(fd, b"line 3, after the restore\n")
            # Its file became shorter: tail begins anew.
            assert reader.until(b"after the restore\n").startswith(b"line 1\n")
            assert path.read_bytes() == b"line 1\nline 2\nline 3, after the restore\n"
        finally:
            tail.kill()


def test_tail_by_name_follows_to_the_restored_file(workspace: Mounted) -> None:
    path = workspace.mountpoint / "log"
    write_file(path, b"old file\n")
    checkpoint = workspace.checkpoint()
    os.rename(path, path.with_name("log.1"))
    write_file(path, b"rotated\n")
    with _following("-F", "---disable-inotify", "-s", "0.05", path=path) as tail:
        try:
            assert tail.stdout is not None
            reader = Reader(tail.stdout)
            reader.until(b"rotated\n")
            workspace.restore(checkpoint)
            reader.until(b"old file\n")
            with opened(path, os.O_WRONLY | os.O_APPEND) as fd:
                os.write(fd, b"and on\n")
            reader.until(b"and on\n")
        finally:
            tail.kill()


def test_a_build_that_runs_on(workspace: Mounted) -> None:
    """A Python program imports modules of the tree before and after."""
    top = workspace.mountpoint
    write_file(top / "one.py", b"value = 'first'\n")
    write_file(top / "two.py", b"value = 'first'\n")
    checkpoint = workspace.checkpoint()
    write_file(top / "one.py", b"value = 'second'\n")
    write_file(top / "two.py", b"value = 'second'\n")
    program = (
        f"import sys; sys.path.insert(0, {str(top)!r}); import one; print(one.value, flush=True);"
        "input(); import two; print(two.value, flush=True)"
    )
    with subprocess.Popen(
        [sys.executable, "-B", "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as running:
        assert running.stdin is not None
        assert running.stdout is not None
        assert running.stdout.readline() == b"second\n"
        workspace.restore(checkpoint)
        running.stdin.write(b"\n")
        running.stdin.close()
        assert running.stdout.readline() == b"first\n"


# -- nothing late -------------------------------------------------------------------------------


def test_nothing_changes_after_a_restore(workspace: Mounted) -> None:
    """No late write, size or time of the kernel's reaches the restored state."""
    top = workspace.mountpoint
    for number in range(20):
        write_file(top / f"f{number}", b"first %d" % number * 3000)
    first, checkpoint = state_of(top), workspace.checkpoint()
    held: list[int] = []
    mappings = []
    for number in range(20):
        fd = os.open(top / f"f{number}", os.O_RDWR)
        held.append(fd)
        if number % 4 == 0:
            os.pwrite(fd, b"dirty" * 20_000, number * 1000)
        elif number % 4 == 1:
            os.ftruncate(fd, number)
            os.fchmod(fd, 0o700)
        elif number % 4 == 2:
            mapping = mmap.mmap(fd, 3 * PAGE)
            mapping[10:20] = b"x" * 10
            mappings.append(mapping)
        else:
            os.utime(fd)
    workspace.restore(checkpoint)
    names = tuple(first.entries)
    assert changes(workspace) == (0, 0, 0)
    for fd in held:
        os.fsync(fd)
    drop_caches()
    assert changes(workspace) == (0, 0, 0)
    for mapping in mappings:
        mapping.close()
    for fd in held:
        os.close(fd)
    drop_caches()
    assert changes(workspace) == (0, 0, 0)
    assert_same(state_of(top), first, but_ctime_of=names)
    drop_caches()
    assert_same(state_of(top), first, but_ctime_of=names)


@contextlib.contextmanager
def going_on(step: Callable[[int], None]) -> Iterator[None]:
    """A process that calls step(0), step(1), ... until the end of the block, or of the tests."""
    stop_reading, stop = os.pipe()
    pid = os.fork()
    if pid == 0:
        status, number = 1, 0
        try:
            os.close(stop)
            while not select.select([stop_reading], [], [], 0)[0]:
                step(number)
                number += 1
            status = 0
        finally:
            os._exit(status)
    try:
        yield
    finally:
        os.write(stop, b"x")
        _, status = os.waitpid(pid, 0)
        os.close(stop)
        os.close(stop_reading)
    assert status == 0


@pytest.mark.parametrize("files", [1, 40])
def test_a_writer_that_does_not_stop(workspace: Mounted, files: int) -> None:
    """Line-by-line log writers across restores: what one writes during a restore is before or
    after it. A page that was made dirty on top of the old state must not bring its bytes back.
    """
    paths = [workspace.mountpoint / f"log{number}" for number in range(files)]
    for path in paths:
        write_file(path, b"".join(b"first  %06d\n" % n for n in range(500)))
    checkpoint = workspace.checkpoint()
    right = paths[0].read_bytes()
    for path in paths:
        with opened(path, os.O_WRONLY) as fd:
            os.pwrite(fd, b"SECOND", 0)
            os.pwrite(fd, b"".join(b"second %06d\n" % n for n in range(500)), len(right))
    fds: list[int] = []

    def write(number: int) -> None:
        if not fds:
            fds.extend(os.open(path, os.O_WRONLY | os.O_APPEND) for path in paths)
        os.write(fds[number % files], b"loop   %06d\n" % number)

    with going_on(write):
        for _ in range(15):
            workspace.restore(checkpoint)
            for path in paths:
                found = path.read_bytes()
                assert found.startswith(right), _first_difference(found, right)
                lines = found[len(right) :].split(b"\n")
                assert all(line.startswith(b"loop ") for line in lines[:-1]), lines[:3]


@pytest.mark.parametrize("files", [1, 40])
def test_a_mapped_writer_that_does_not_stop(workspace: Mounted, files: int) -> None:
    """The same by stores to a shared mapping: only the stored bytes may be after the restore."""
    size = 4 * PAGE
    paths = [workspace.mountpoint / f"f{number}" for number in range(files)]
    for path in paths:
        write_file(path, b"1" * size)
    checkpoint = workspace.checkpoint()
    for path in paths:
        write_file(path, b"2" * size)
    mappings: list[mmap.mmap] = []

    def store(number: int) -> None:
        if not mappings:
            for path in paths:
                with opened(path, os.O_RDWR) as fd:
                    mappings.append(mmap.mmap(fd, size))
        for page in range(4):
            mappings[number % files][page * PAGE + 7] = number & 0xFF

    with going_on(store):
        for _ in range(15):
            workspace.restore(checkpoint)
            for path in paths:
                found = bytearray(path.read_bytes())
                assert len(found) == size
                for page in range(4):
                    found[page * PAGE + 7] = ord("1")
                assert found == b"1" * size, _first_difference(bytes(found), b"1" * size)
            undo(workspace)


def _first_difference(found: bytes, right: bytes) -> str:
    at = next((i for i, (a, b) in enumerate(zip(found, right, strict=False)) if a != b), -1)
    return f"sizes {len(found)} and {len(right)}, at {at}: {found[at : at + 20]!r}"
