"""Checkpoints on a live mount: one moment, dirty pages included, durable (contracts 2, 4)."""

from __future__ import annotations

import contextlib
import mmap
import os
import select
import shutil
import signal
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import MountFunction
from tests.mount.calls import PAGE, opened, write_file
from tests.mount.history import file_in, names_in
from tests.mount.mounts import killed_and_mounted_again
from tests.mount.states import assert_same, state_of
from tests.mount.steps import expected, operations
from tests.support.mounting import Mounted

MIB = 1 << 20


@pytest.fixture
def workspace(mount: MountFunction, base: Path) -> Mounted:
    return mount(base)


@contextlib.contextmanager
def child(run: Callable[[], None]) -> Iterator[int]:
    """A process that runs until it is killed at the end of the block; its pid."""
    pid = os.fork()
    if pid == 0:
        try:
            run()
        finally:
            os._exit(0)
    try:
        yield pid
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


# -- dirty pages --------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 100_000, 20 * MIB])
def test_an_open_writer(workspace: Mounted, size: int) -> None:
    path = workspace.mountpoint / "f"
    data = os.urandom(MIB) * (size // MIB) if size > MIB else os.urandom(size)
    with opened(path, os.O_CREAT | os.O_RDWR) as fd:
        os.write(fd, data)
        first = workspace.checkpoint()
        os.pwrite(fd, b"X", size // 2)
        second = workspace.checkpoint()
        os.ftruncate(fd, size // 3)
        third = workspace.checkpoint()
        assert file_in(workspace, first, "f") == data
        changed = data[: size // 2] + b"X" + data[size // 2 + 1 :]
        assert file_in(workspace, second, "f") == changed
        assert file_in(workspace, third, "f") == changed[: size // 3]


def test_many_open_writers(workspace: Mounted) -> None:
    top = workspace.mountpoint
    with contextlib.ExitStack() as stack:
        for number in range(100):
            flags = os.O_CREAT | (os.O_WRONLY if number % 2 else os.O_RDWR)
            fd = stack.enter_context(opened(top / f"f{number}", flags, 0o200 if number % 3 else 0))
            os.write(fd, b"%d " % number * 30_000)
        checkpoint = workspace.checkpoint()
        for number in range(0, 100, 9):
            assert file_in(workspace, checkpoint, f"f{number}") == b"%d " % number * 30_000


def test_a_shared_mapping_without_msync(workspace: Mounted) -> None:
    path = workspace.mountpoint / "f"
    size = 2000 * PAGE
    with opened(path, os.O_CREAT | os.O_RDWR) as fd:
        os.ftruncate(fd, size)
        mapping = mmap.mmap(fd, size)
    for number in range(0, 2000, 7):
        mapping[number * PAGE + 5 : number * PAGE + 9] = b"%04d" % number
    first = workspace.checkpoint()
    right = bytes(mapping[:])
    mapping[100:105] = b"later"
    later = bytes(mapping[:])
    second = workspace.checkpoint()
    mapping[100:105] = b"again"
    assert file_in(workspace, first, "f") == right
    assert file_in(workspace, second, "f") == later
    mapping.close()


def test_an_appender(workspace: Mounted) -> None:
    path = workspace.mountpoint / "log"
    ids = []
    with opened(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND) as fd:
        for number in range(20):
            os.write(fd, b"line %d\n" % number)
            ids.append(workspace.checkpoint())
        for number in (0, 7, 19):
            right = b"".join(b"line %d\n" % n for n in range(number + 1))
            assert file_in(workspace, ids[number], "log") == right


def test_modification_time_of_unflushed_writes(workspace: Mounted) -> None:
    path = workspace.mountpoint / "f"
    write_file(path, b"x")
    os.utime(path, ns=(1, 1))
    with opened(path, os.O_RDWR) as fd:
        os.pwrite(fd, b"y", 0)
        state = state_of(workspace.mountpoint)
        checkpoint = workspace.checkpoint()
        os.pwrite(fd, b"z", 0)
    workspace.restore(checkpoint)
    assert os.stat(path).st_mtime_ns > 1
    assert_same(state_of(workspace.mountpoint), state)


def test_an_unlinked_open_file_is_not_in_it(workspace: Mounted) -> None:
    path = workspace.mountpoint / "f"
    with opened(path, os.O_CREAT | os.O_RDWR) as fd:
        os.write(fd, b"secret" * 100_000)
        os.unlink(path)
        checkpoint = workspace.checkpoint()
        assert names_in(workspace, checkpoint) == set()
        assert os.pread(fd, 6, 0) == b"secret"


# -- one moment ---------------------------------------------------------------------------------


def test_all_that_returned_before_and_nothing_that_began_after(workspace: Mounted) -> None:
    """A process tells of each operation when it has returned, while checkpoints are made."""
    top = workspace.mountpoint
    reading, writing = os.pipe()
    turn_reading, turn = os.pipe()

    def run() -> None:
        for step in operations(top):
            os.write(writing, step[:1].encode())
            if select.select([turn_reading], [], [], 0)[0]:
                os.read(turn_reading, 1)

    os.set_blocking(reading, False)

    def reported() -> int:
        total = 0
        while True:
            try:
                piece = os.read(reading, 1 << 16)
            except BlockingIOError:
                return total
            total += len(piece)

    with child(run):
        steps, ids = 0, []
        for _ in range(25):
            select.select([reading], [], [], 20)
            steps += reported()
            checkpoint = workspace.checkpoint()
            before = steps
            steps += reported()
            # One operation may have begun (and one more been done) that was not told of yet.
            ids.append((checkpoint, before, steps + 1))
    os.close(turn)
    os.close(turn_reading)
    os.close(reading)
    os.close(writing)
    for checkpoint, low, high in ids:
        names = names_in(workspace, checkpoint)
        journal = file_in(workspace, checkpoint, "journal") or b""
        right = [n for n in range(low, high + 1) if expected(n) == (names, journal)]
        # Making a file is several operations (create, write, close): between them is allowed.
        partly = [n for n in range(low, high + 1) if expected(n + 1)[0] == names]
        assert right or partly, f"the checkpoint after step {low} (at most {high}) has {names}"


def test_sqlite_in_wal_mode(workspace: Mounted) -> None:
    """Every checkpoint of a busy database opens, is sound, and has what was committed before."""
    path = workspace.mountpoint / "data.db"
    reading, writing = os.pipe()

    def run() -> None:
        database = sqlite3.connect(path, isolation_level=None)
        database.execute("pragma journal_mode=wal")
        database.execute("create table t(n integer primary key, text blob)")
        number = 0
        while True:
            database.execute("insert into t values (?, ?)", (number, os.urandom(2000)))
            if number % 50 == 49:
                database.execute("pragma wal_checkpoint(truncate)")
            os.write(writing, b"x")
            number += 1

    checkpoints = []
    with child(run):
        committed = 0
        for _ in range(8):
            committed += len(os.read(reading, 1 << 16))
            checkpoints.append((workspace.checkpoint(), committed))
    os.close(reading)
    os.close(writing)
    copy = workspace.store.parent / "copy"
    for checkpoint, committed in checkpoints:
        copy.mkdir()
        for name in ("data.db", "data.db-wal"):
            content = file_in(workspace, checkpoint, name)
            if content is not None:
                write_file(copy / name, content)
        with contextlib.closing(sqlite3.connect(copy / "data.db")) as database:
            assert database.execute("pragma integrity_check").fetchone() == ("ok",)
            (rows,) = database.execute("select count(*) from t").fetchone()
        assert rows >= committed
        shutil.rmtree(copy)


def test_git_commits_between_checkpoints(workspace: Mounted) -> None:
    if not shutil.which("git"):
        pytest.skip("git is not installed")
    top = workspace.mountpoint
    ids = []

    def git(*words: str) -> str:
        return subprocess.check_output(
            ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", top, *words],
            text=True,
            stderr=subprocess.STDOUT,
            env={"PATH": os.environ["PATH"], "HOME": str(top), "GIT_CONFIG_NOSYSTEM": "1"},
        )

    git("init", "-q")
    for number in range(4):
        for name in range(10):
            write_file(top / f"f{name}", b"%d %d\n" % (number, name) * 100)
        git("add", "-A")
        git("commit", "-q", "-m", f"commit {number}")
        ids.append((workspace.checkpoint(), git("rev-parse", "HEAD")))
    git("gc", "-q")
    for checkpoint, head in (ids[0], ids[3], ids[1]):
        workspace.restore(checkpoint)
        assert git("rev-parse", "HEAD") == head
        assert git("status", "--porcelain") == ""
        git("fsck", "--strict")


# -- on stable storage --------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["fsync", "fdatasync", "O_SYNC", "O_DSYNC", "directory"])
def test_synced_data_survives_a_killed_daemon(mount: MountFunction, base: Path, how: str) -> None:
    mounted = mount(base)
    top = mounted.mountpoint
    (top / "a/b").mkdir(parents=True)
    path = top / "a/b/f"
    data = os.urandom(3 * MIB)
    extra = {"O_SYNC": os.O_SYNC, "O_DSYNC": os.O_DSYNC}.get(how, 0)
    fd = os.open(path, os.O_CREAT | os.O_WRONLY | extra)
    os.write(fd, data)
    os.rename(top / "a/b", top / "a/c")
    if how == "fsync":
        os.fsync(fd)
    elif how == "fdatasync":
        os.fdatasync(fd)
    elif how == "directory":
        os.close(fd)
        fd = os.open(top / "a", os.O_RDONLY | os.O_DIRECTORY)
        os.fsync(fd)
    else:
        os.pwrite(fd, data[:1], 0)
    again = killed_and_mounted_again(mounted, mount)
    with contextlib.suppress(OSError):  # its file system is gone
        os.close(fd)
    assert (again.mountpoint / "a/c/f").read_bytes() == data
    assert not (again.mountpoint / "a/b").exists()


def test_a_checkpoint_survives_a_killed_daemon(mount: MountFunction, base: Path) -> None:
    write_file(base / "from-base", b"base")
    mounted = mount(base)
    top = mounted.mountpoint
    fd = os.open(top / "f", os.O_CREAT | os.O_RDWR)
    os.write(fd, b"dirty" * 100_000)
    os.unlink(top / "from-base")
    state = state_of(top)
    checkpoint = mounted.checkpoint(label="kept")
    again = killed_and_mounted_again(mounted, mount)
    with contextlib.suppress(OSError):
        os.close(fd)
    assert file_in(again, "kept", "f") == b"dirty" * 100_000
    again.restore(checkpoint)
    assert_same(state_of(again.mountpoint), state)


def test_a_restore_survives_a_killed_daemon(mount: MountFunction, base: Path) -> None:
    mounted = mount(base)
    top = mounted.mountpoint
    write_file(top / "f", b"first")
    state = state_of(top)
    checkpoint = mounted.checkpoint()
    write_file(top / "f", b"second" * 10_000)
    mounted.restore(checkpoint)
    again = killed_and_mounted_again(mounted, mount)
    assert_same(state_of(again.mountpoint), state)
    again.call("undo")
    assert (again.mountpoint / "f").read_bytes() == b"second" * 10_000
