"""Kills, interruptions, full disks, and what is left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.cases.workspace import Workspace, git, repository
from tests.cli.command import Cowfs
from tests.mount.calls import errno_of, eventually, opened, write_file
from tests.mount.states import State
from tests.mount.test_lifecycle import needs_abort
from tests.support.listing import difference, listing, portable

History = tuple[Workspace, State, str, State, str]
FILES = 300
MIB = 1 << 20


def fill(top: Path, mark: str) -> None:
    """Files of which each says `mark`, and a commit of it in the repository there."""
    for number in range(FILES):
        write_file(top / f"f{number:03}", f"{mark} {number}\n".encode() * 20)
    write_file(top / "tracked", mark.encode())
    git(top, "commit", "-qam", mark)


def wait_for_end(process: subprocess.Popen[bytes]) -> bool:
    """Wait for a command; whether it succeeded."""
    process.communicate(timeout=60)
    return process.returncode == 0


def until(process: subprocess.Popen[bytes], condition: Callable[[], bool]) -> None:
    """Wait for something that a command brings about, or for its end."""
    eventually(lambda: condition() or process.poll() is not None)


def committing(space: Workspace) -> Callable[[], bool]:
    """Tells whether something was committed since."""
    before = os.stat(space.store / "data.mdb").st_mtime_ns
    return lambda: os.stat(space.store / "data.mdb").st_mtime_ns != before


def start(space: Workspace, *words: str | Path) -> subprocess.Popen[bytes]:
    """A command that is not waited for."""
    return space.cowfs.start(
        *words, cwd=space.cowfs.top, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


@pytest.fixture
def history(cowfs: Cowfs, project: Path) -> History:
    """A repository with two checkpoints, the second one being the present state."""
    repository(project)
    at = cowfs.top / "at"
    at.mkdir()
    space = Workspace(cowfs, project, at=at)
    fill(space.top, "one")
    first, one = space.state(), space.checkpoint()
    fill(space.top, "two")
    second, two = space.state(), space.checkpoint()
    return space, first, one, second, two


@needs_abort
def test_case_11_killed_in_a_checkpoint(history: History) -> None:
    """The tool is killed in the middle of a checkpoint: it is there or not, the state is the same,
    `.git` sound."""
    space, _, _, second, _ = history
    known = [row["id"] for row in space.checkpoints()]
    for command_too in (False, True):
        with open(space.top / "open", "w") as file:
            file.write("not flushed yet" * 10_000)
            committed = committing(space)
            process = start(space, "-C", space.top, "checkpoint", "-m", "killed")
            until(process, committed)
            space.cowfs.kill(space.store)
            if command_too:
                process.kill()
            with suppress(OSError):
                file.close()
        done = wait_for_end(process)
        space.mount()
        found = [row["id"] for row in space.checkpoints()]
        assert found[-len(known) :] == known
        assert len(found) - len(known) in ([1] if done else [0, 1])
        known = found
        (space.top / "open").unlink(missing_ok=True)  # it was not synced
        git(space.top, "fsck", "--strict", "--no-dangling")
        found_now, right = space.state().entries, dict(second.entries)
        # A name was made and removed in the top directory, and nothing else.
        assert difference(right | {".": found_now["."]}, found_now) == []


@pytest.mark.parametrize(
    "moment",
    [
        pytest.param("begun", marks=needs_abort),
        pytest.param("shown", marks=needs_abort),
        "command",
    ],
)
def test_case_11_killed_in_a_restore(history: History, moment: str) -> None:
    """The tool is killed in the middle of a restore: the state before or the state after."""
    space, first, one, second, _ = history
    committed = committing(space)
    process = start(space, "-C", space.top, "restore", one)
    if moment == "begun":
        until(process, committed)
    elif moment == "shown":
        eventually(lambda: (space.top / "f150").read_bytes().startswith(b"one"))
    done = False
    if moment == "command":
        process.kill()
        wait_for_end(process)
        space.checkpoint()  # waits for a restore that the daemon may be at
    else:
        space.cowfs.kill(space.store)
        done = wait_for_end(process)
        space.mount()
    found = space.state()
    if found.entries == first.entries:
        space.must_be(first)
    else:
        assert not done, "what was answered is durable"
        assert moment != "shown", "what was seen is durable"
        space.must_be(second)
    git(space.top, "fsck", "--strict", "--no-dangling")
    assert git(space.top, "status", "--porcelain", "-uno") == ""
    space.restore(one)
    space.must_be(first)


def test_case_11_killed_in_an_apply(history: History) -> None:
    """The tool is killed in the middle of an apply: the next mount finishes it, and no stray file
    is left in the directory."""
    space, _, one, second, _ = history
    for right, target in ((second, None), (None, one)):
        if target is not None:
            space.restore(target)
            right = space.state()
        assert right is not None
        process = start(space, "-C", space.top, "apply")
        until(process, (space.base / ".cowfs-apply").exists)
        space.cowfs.kill(space.store)
        done = wait_for_end(process)
        space.mount()
        space.must_be(right)
        if not done:
            space.run("apply")
        assert difference(portable(right.entries), portable(listing(space.base))) == []
        assert ".cowfs-apply" not in os.listdir(space.base)
        git(space.base, "fsck", "--strict", "--no-dangling")


def test_case_16_the_home_directory(cowfs: Cowfs) -> None:
    """The workspace is the home directory: refused unless forced, and nothing is made there."""
    write_file(cowfs.home / "notes", b"notes")
    before = listing(cowfs.home)
    for place in (cowfs.home, Path("/")):
        assert cowfs.fails("mount", place)["code"] == "COWFS_FORBIDDEN_WORKSPACE"
    assert cowfs.fails("mount", cowfs.home.parent)["code"] == "COWFS_FORBIDDEN_WORKSPACE"
    assert cowfs.mounts() == []
    assert listing(cowfs.home) == before
    cowfs.ok("mount", cowfs.home, "--force")
    assert (cowfs.home / "notes").read_bytes() == b"notes"
    assert cowfs.ok("checkpoint", cwd=cowfs.home)["checkpoint"]["id"]
    cowfs.ok("unmount", cowfs.home)
    assert listing(cowfs.home) == before


def test_case_16_interrupted_again_and_again(history: History) -> None:
    """Clean-up is interrupted, again and again: leftovers do not grow."""
    space, _, one, second, _ = history
    shapes = []
    for number in range(3):
        to = space.cowfs.top / "interrupted"
        process = start(space, "-C", space.top, "export", one, to)
        until(process, lambda: left_in(space.cowfs.top) != [])
        process.send_signal(signal.SIGINT)
        if wait_for_end(process):
            break
        assert left_in(space.cowfs.top) == []
        if number % 2:
            space.cowfs.kill(space.store)
        else:
            space.unmount("--no-apply")
        assert "cowfs" not in " ".join(os.listdir(space.base))
        space.mount()
        shapes.append((sorted(os.listdir(space.store)), space.records()))
    assert all(shape == shapes[0] for shape in shapes)
    space.must_be(second)


def left_in(directory: Path) -> list[str]:
    """What an interrupted export left, or one that runs is making."""
    return [name for name in os.listdir(directory) if "interrupted" in name]


@pytest.fixture
def small_disk(cowfs: Cowfs) -> Iterator[Path]:
    """A disk of 24 MiB."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small disk needs root")
    place = cowfs.top / "disk"
    place.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=24m", "small-disk", place], check=False
    )
    if done.returncode != 0:
        pytest.skip("a tmpfs cannot be mounted here")
    yield place
    cowfs.clean_up()
    subprocess.run(["umount", "-l", place], check=True)


def test_case_17_no_byte_left(cowfs: Cowfs, project: Path, small_disk: Path) -> None:
    """The disk has no byte left: writers get ENOSPC, what is stored is whole, and when there is
    room again, everything goes on."""
    ballast = small_disk / "ballast"
    write_file(ballast, bytes(12 * MIB))
    write_file(project / "old", b"old")
    space = Workspace(cowfs, project, store=small_disk / "store")
    write_file(space.top / "kept", b"kept" * 30_000)
    first, here = space.state(), space.checkpoint("--label", "whole")
    assert filling(space.top / "big") == "ENOSPC"
    assert (space.top / "kept").read_bytes() == b"kept" * 30_000
    assert (space.top / "old").read_bytes() == b"old"
    assert whole(space) == here
    assert json.loads((space.store / "workspace.json").read_text())["base"] == str(project)
    os.unlink(space.top / "big")
    ballast.unlink()
    eventually(lambda: space.run("status")["health"]["state"] != "failing")
    eventually(lambda: errno_of(write_file, space.top / "again", b"again" * 30_000) == "")
    assert whole(space) == here
    after = space.checkpoint()
    space.restore("whole")
    space.must_be(first)
    assert space.show(after, "again") == b"again" * 30_000
    space.unmount()
    assert sorted(os.listdir(project)) == ["kept", "old"]


def test_case_17_in_a_user_namespace(tmp_path: Path) -> None:
    """The same for a user who is root in a namespace of its own, as in a rootless container: there
    it has a small disk, and mounts without fusermount3(1)."""
    if os.geteuid() == 0:
        pytest.skip("root has run the test itself")
    space = ["unshare", "--map-root-user", "--mount"]
    if subprocess.run([*space, "true"], check=False, capture_output=True).returncode != 0:
        pytest.skip("no user namespace can be made here")
    case = f"{__file__}::{test_case_17_no_byte_left.__name__}"
    words = [sys.executable, "-m", "pytest", "-q", "-rN", "-p", "no:cacheprovider", case]
    top = Path(__file__).parent.parent.parent
    done = subprocess.run(
        [*space, *words, f"--basetemp={tmp_path}/within"],
        cwd=top,
        check=False,
        capture_output=True,
        text=True,
    )
    assert "1 passed" in done.stdout, done.stdout + done.stderr


def whole(space: Workspace) -> str:
    """The checkpoint that has this label, with the content that it must have."""
    assert space.show("whole", "kept") == b"kept" * 30_000
    (found,) = [row["id"] for row in space.checkpoints() if row["label"] == "whole"]
    return str(found)


def filling(path: Path) -> str:
    """The errno with which a writer who never stops is stopped."""

    def write() -> None:
        with opened(path, os.O_CREAT | os.O_WRONLY) as fd:
            for _ in range(200):
                os.write(fd, os.urandom(MIB // 4))
            os.fsync(fd)

    return errno_of(write)


def test_case_27_what_one_epoch_made_and_removed(space: Workspace) -> None:
    """Garbage: what is made and removed between two checkpoints leaves no name, inode or change in
    the store, whatever the number of times."""

    def work() -> None:
        for number in range(50):
            write_file(space.top / f"temporary{number}", b"%d" % number * 100)
            os.rename(space.top / f"temporary{number}", space.top / "object")
        (space.top / "scratch").mkdir()
        write_file(space.top / "scratch/file", b"scratch")
        os.unlink(space.top / "scratch/file")
        os.rmdir(space.top / "scratch")
        os.unlink(space.top / "object")

    tables = ("inode", "dirent", "link", "extent", "xattr", "change", "origin", "base")

    def kept() -> dict[str, int]:
        found = space.records()
        return {table: found[table] for table in tables}

    space.wait_until_imported()
    space.checkpoint()
    right = kept()
    right["inode"] += 1  # the top directory has other times
    right["change"] += 1
    for _ in range(4):
        work()
    # The kernel tells of the end of a closed file a little later.
    eventually(lambda: kept() == right)
