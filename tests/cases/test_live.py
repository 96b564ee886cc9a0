"""Checkpoints and restores while other processes write, hold, list and watch."""

from __future__ import annotations

import mmap
import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from tests.cases.workspace import Workspace, git, repository
from tests.cli.command import Cowfs
from tests.mount.calls import DirectoryStream, Inotify, child_process, opened, write_file
from tests.mount.states import fill_base, make_first, make_second
from tests.tools.tool import need

_FORGETTER = """
while :; do
    echo 2 > /proc/sys/vm/drop_caches || exit
    ls -lR . > /dev/null
done 2> /dev/null
"""


@pytest.fixture
def filled(cowfs: Cowfs, project: Path) -> Workspace:
    """A workspace with something of everything, some of it in the base."""
    fill_base(project)
    space = Workspace(cowfs, project)
    make_first(space.top)
    return space


def test_case_18_in_the_middle_of_writes(space: Workspace) -> None:
    """The history gets a moment while somebody is in the middle of writes, the index lock of git
    held: the moment is consistent, and later writes never appear in it."""
    need("git")
    repository(space.top)
    write_file(space.top / ".git/index.lock", b"half")
    with opened(space.top / "stream", os.O_CREAT | os.O_WRONLY) as stream:
        os.write(stream, b"before;" * 30_000)
        os.rename(space.top / "other", space.top / "moved")
        before, here = space.files(), space.checkpoint()
        os.write(stream, b"after;" * 30_000)
        with open(space.top / ".git/index.lock", "ab") as lock:
            lock.write(b" and whole")
        os.rename(space.top / "moved", space.top / "other")
        write_file(space.top / "tracked", b"later\n")
    os.unlink(space.top / ".git/index.lock")
    later = space.state()
    for exported in (space.export(here), space.export(here)):
        assert (exported / "stream").read_bytes() == b"before;" * 30_000
        assert (exported / ".git/index.lock").read_bytes() == b"half"
        assert git(exported, "--no-optional-locks", "diff", "--name-only") == "other\n"
    assert space.show(here, "tracked") == b"one\n"
    space.restore(here)
    found = space.files()
    assert found.keys() == before.keys()
    assert {path: entry.content for path, entry in found.items()} == {
        path: entry.content for path, entry in before.items()
    }
    space.run("undo")
    space.must_be(later)


def test_case_19_parallel_writers_in_workspaces(cowfs: Cowfs) -> None:
    """Writers in several workspaces at once: each lands in its own only."""
    spaces = []
    for number in range(2):
        base = cowfs.top / f"project{number}"
        repository(base)
        spaces.append(Workspace(cowfs, base))
    here = [space.checkpoint() for space in spaces]
    first = [space.state() for space in spaces]
    script = 'i=0; while [ $i -lt 200 ]; do echo "$0 $i" > "f$i"; rm -f other; i=$((i+1)); done'
    writers = [["sh", "-ec", script, str(number)] for number in range(2)]
    pids = [os.posix_spawnp("env", ["env", "-C", str(space.top), *words], os.environ)
            for space, words in zip(spaces, writers, strict=True)]  # fmt: skip
    assert [os.waitpid(pid, 0)[1] for pid in pids] == [0, 0]
    for number, space in enumerate(spaces):
        names = {f"f{i}" for i in range(200)}
        assert set(os.listdir(space.top)) == names | {".git", "tracked"}
        for i in range(200):
            assert (space.top / f"f{i}").read_text() == f"{number} {i}\n"
    spaces[0].restore(here[0])
    spaces[0].must_be(first[0])
    assert (spaces[1].top / "f0").read_text() == "1 0\n"
    assert not (spaces[1].top / "other").exists()


@contextmanager
def forgetting(top: Path) -> Iterator[None]:
    """The kernel forgets inodes all the time (as root), others look them up again."""
    script = _FORGETTER if os.access("/proc/sys/vm/drop_caches", os.W_OK) else "exec cat"
    with child_process(["sh", "-c", script], cwd=top):
        yield


def test_case_22_inodes_that_the_kernel_forgets(filled: Workspace) -> None:
    """A tree is changed and restored while the kernel forgets inodes, and right after a mount,
    when it holds none: the mount lives and shows the restored state."""
    first, one = filled.state(), filled.checkpoint()
    make_second(filled.top)
    second, two = filled.state(), filled.checkpoint()
    with forgetting(filled.top):
        for _ in range(3):
            filled.restore(one)
            assert (filled.top / "goes").exists()
            filled.restore(two)
            assert not (filled.top / "goes").exists()
    filled.must_be(second)
    filled.remount()
    filled.restore(one)
    filled.must_be(first)
    filled.remount()
    filled.restore(two)
    filled.must_be(second)
    # What the kernel holds no more, because it was deleted, and comes back.
    for name in ("dir", "fresh"):
        shutil.rmtree(filled.top / name)
    filled.restore(two)
    filled.must_be(second)


def test_case_23_open_listed_and_watched_directory(space: Workspace) -> None:
    """Restore while others have the directory open, list it and watch it: the new listing is seen
    at the next read, and watchers are told."""
    place = space.top / "place"
    place.mkdir()
    for number in range(300):
        write_file(place / f"old{number}", b"%d" % number)
    write_file(place / "changed", b"first")
    names, before = set(os.listdir(place)), space.checkpoint()
    for number in range(300):
        os.unlink(place / f"old{number}")
        write_file(place / f"new{number}", b"%d" % number)
    write_file(place / "changed", b"second, and longer")
    later = set(os.listdir(place))
    stream = DirectoryStream(place)
    for _ in range(10):
        assert stream.next() is not None
    watcher = Inotify()
    watcher.watch(place)
    with opened(place, os.O_RDONLY | os.O_DIRECTORY) as fd:
        assert set(os.listdir(fd)) == later
        for right in (names, later, names):
            watcher.events()
            if right is names:
                space.restore(before)
            else:
                space.run("undo")
            events = watcher.events()
            assert set(os.listdir(fd)) == set(os.listdir(place)) == right
            stream.rewind()
            assert {os.fsdecode(name) for name in stream.rest()} == right
            came = {os.fsdecode(name) for mask, name in events if mask & Inotify.CREATE}
            went = {os.fsdecode(name) for mask, name in events if mask & Inotify.DELETE}
            assert came == right - (names & later)
            assert went == (names | later) - right
            told = {name for mask, name in events if mask & Inotify.MODIFY}
            assert b"changed" in told
    stream.close()
    watcher.close()


def test_case_26_open_mapped_and_appended(space: Workspace) -> None:
    """A checkpoint while a file is open for writing, mapped, and being appended to: what was
    written and stored before is in it, nothing later."""
    top = space.top
    write_file(top / "mapped", bytes(3 * mmap.PAGESIZE))
    with (
        opened(top / "written", os.O_CREAT | os.O_RDWR) as written,
        opened(top / "log", os.O_CREAT | os.O_WRONLY | os.O_APPEND) as log,
        opened(top / "mapped", os.O_RDWR) as descriptor,
        mmap.mmap(descriptor, 0) as mapped,
    ):
        points = []
        for number in range(3):
            os.pwrite(written, b"%d" % number * 100_000, number * 50_000)
            os.write(log, b"line %d\n" % number)
            mapped[number * mmap.PAGESIZE] = number + 1
            right = [(top / name).read_bytes() for name in ("written", "log", "mapped")]
            points.append((space.checkpoint(), right))
        for here, right in points:
            found = [space.show(here, name) for name in ("written", "log", "mapped")]
            assert found == right
        here, right = points[0]
        space.restore(here)
        assert os.pread(written, 1 << 20, 0) == right[0]
        assert mapped[: 3 * mmap.PAGESIZE] == right[2]
        os.write(log, b"after\n")
        assert (top / "log").read_bytes() == right[1] + b"after\n"


def test_case_26_sqlite_in_wal_mode(space: Workspace) -> None:
    """A database in WAL mode, in use by several connections: each checkpoint opens, passes its
    integrity check and has all committed transactions, and none that was open."""
    path = space.top / "database"
    points = []
    with closing(sqlite3.connect(path, isolation_level=None)) as writer:
        assert writer.execute("PRAGMA journal_mode=wal").fetchone() == ("wal",)
        writer.execute("PRAGMA wal_autocheckpoint=20")
        writer.execute("CREATE TABLE rows (number INTEGER PRIMARY KEY, filler BLOB)")
        with closing(sqlite3.connect(path, isolation_level=None)) as reader:
            for number in range(30):
                writer.execute("BEGIN")
                writer.execute("INSERT INTO rows VALUES (?, randomblob(3000))", (number,))
                if number % 6 == 5:
                    points.append((space.checkpoint(), number))
                writer.execute("COMMIT")
                assert reader.execute("SELECT count(*) FROM rows").fetchone() == (number + 1,)
                if number % 6 == 2:
                    points.append((space.checkpoint(), number + 1))
    for here, committed in points:
        assert rows(space.export(here) / "database") == committed
    for here, committed in points[::3]:
        space.restore(here)
        assert rows(path) == committed


def rows(path: Path) -> int:
    """How many rows a sound database has."""
    with closing(sqlite3.connect(path)) as database:
        assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        (found,) = database.execute("SELECT count(*) FROM rows").fetchone()
        return int(found)
