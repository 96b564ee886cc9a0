"""`.cowfs/checkpoints` on a live mount: every checkpoint with ordinary tools."""

from __future__ import annotations

import mmap
import os
import random
import shutil
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from cowfs.client.rpc import RpcError
from cowfs.volume import history
from tests.conftest import MountFunction
from tests.mount.calls import (
    NOBODY,
    Inotify,
    errno_of,
    eventually,
    in_child,
    linkat,
    opened,
    read_all,
    renameat2,
    write_file,
)
from tests.mount.states import State, assert_same, fill_base, make_first, make_second, state_of
from tests.support.listing import difference, listing, portable
from tests.support.mounting import Mounted
from tests.support.volumes import AUTHOR, Rig


@pytest.fixture
def workspace(mount: MountFunction, base: Path) -> Mounted:
    return mount(base)


@pytest.fixture
def filled(mount: MountFunction, base: Path) -> Mounted:
    """A workspace whose base has something."""
    fill_base(base)
    return mount(base)


def checkpoints(mounted: Mounted) -> Path:
    return mounted.mountpoint / ".cowfs/checkpoints"


def browse(mounted: Mounted, checkpoint: str) -> Path:
    return checkpoints(mounted) / checkpoint


def then(state: State) -> State:
    """A state as another view of the mount shows it: its inodes have numbers of their own."""
    return State({path: e._replace(ino=0) for path, e in state.entries.items()}, state.ctimes)


def assert_shows(mounted: Mounted, checkpoint: str, state: State) -> None:
    top = os.path.realpath(browse(mounted, checkpoint))
    assert_same(then(state_of(top)), then(state))


def tool(*words: object) -> tuple[int, str]:
    done = subprocess.run(
        [os.fspath(word) if isinstance(word, Path) else str(word) for word in words],
        capture_output=True,
        env={**os.environ, "LC_ALL": "C"},
        check=False,
    )
    return done.returncode, os.fsdecode(done.stdout + done.stderr)


# -- the same as then -------------------------------------------------------------------------


def test_as_it_was_while_the_head_changes(filled: Mounted) -> None:
    top = filled.mountpoint
    make_first(top)
    first, one = state_of(top), filled.checkpoint()
    assert_shows(filled, one, first)
    make_second(top)
    assert_shows(filled, one, first)
    second, two = state_of(top), filled.checkpoint()
    filled.restore(one)
    assert_same(state_of(top), first)
    assert_shows(filled, two, second)
    for name in os.listdir(top):
        path = top / name
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    rescue = filled.call("undo")["rescue"]["id"]
    assert os.listdir(browse(filled, rescue)) == []
    assert_shows(filled, one, first)
    assert_shows(filled, two, second)
    assert_same(state_of(top), second)


@pytest.mark.parametrize("seed", range(3))
def test_random_work(workspace: Mounted, tmp_path: Path, seed: int) -> None:
    """Each checkpoint equals a copy that cp(1) took of the mount at that time."""
    rng, top = random.Random(seed), workspace.mountpoint
    (top / "d/e").mkdir(parents=True)
    copies: dict[str, Path] = {}

    def files() -> list[Path]:
        return [p for p in top.rglob("*") if p.is_file() and not p.is_symlink()]

    def change() -> None:
        path = rng.choice([top, top / "d", top / "d/e"]) / f"f{rng.randrange(6)}"
        what = rng.randrange(8)
        if what == 0 and (found := files()):
            rng.choice(found).unlink()
        elif what == 1 and (found := files()):
            os.rename(rng.choice(found), path)
        elif what == 2 and (found := files()) and not path.exists():
            os.link(rng.choice(found), path)
        elif what == 3 and (found := files()):
            os.truncate(rng.choice(found), rng.randrange(200_000))
        elif what == 4 and (found := files()):
            os.chmod(rng.choice(found), rng.choice([0o600, 0o644, 0o755]))
        elif what == 5 and (found := files()):
            os.setxattr(rng.choice(found), "user.n", rng.randbytes(3))
        else:
            write_file(path, rng.randbytes(rng.randrange(150_000)))

    for number in range(8):
        for _ in range(rng.randrange(1, 15)):
            change()
        if number % 3 == 2:
            workspace.restore(rng.choice(sorted(copies)))
            change()
        copy = tmp_path / f"copy{number}"
        subprocess.run(["cp", "-a", top, copy], check=True)
        copies[workspace.checkpoint()] = copy
        change()
        checkpoint = rng.choice(sorted(copies))
        seen = listing(browse(workspace, checkpoint))
        assert difference(portable(listing(copies[checkpoint])), portable(seen)) == []
    for checkpoint, copy in copies.items():
        seen = listing(browse(workspace, checkpoint))
        assert difference(portable(listing(copy)), portable(seen)) == []


def test_a_base_that_nobody_looked_into(mount: MountFunction, base: Path, tmp_path: Path) -> None:
    fill_base(base)
    copy = tmp_path / "copy"
    subprocess.run(["cp", "-a", base, copy], check=True)
    mounted = mount(base)
    (start,) = os.listdir(checkpoints(mounted))
    assert (browse(mounted, start) / "base1/deep/deeper/leaf").read_bytes() == b"leaf 1"
    shutil.rmtree(mounted.mountpoint / "base0")
    os.rename(mounted.mountpoint / "base1", mounted.mountpoint / "moved")
    seen = listing(browse(mounted, start))
    assert difference(portable(listing(copy)), portable(seen)) == []


def test_at_once(workspace: Mounted) -> None:
    """A checkpoint is there when the command has returned."""
    top = workspace.mountpoint
    for number in range(20):
        write_file(top / "f", b"%d" % number)
        checkpoint = workspace.checkpoint()
        write_file(top / "f", b"after")
        assert (browse(workspace, checkpoint) / "f").read_bytes() == b"%d" % number
        assert checkpoint in os.listdir(checkpoints(workspace))


def test_an_open_writer_and_a_mapping(workspace: Mounted) -> None:
    top = workspace.mountpoint
    write_file(top / "f", b"1" * 100_000)
    with opened(top / "f", os.O_RDWR) as fd, mmap.mmap(fd, 0) as shared:
        os.pwrite(fd, b"2" * 10, 70_000)
        shared[0:3] = b"333"
        checkpoint = workspace.checkpoint()
        os.pwrite(fd, b"4" * 10, 70_000)
        old = (browse(workspace, checkpoint) / "f").read_bytes()
    assert old == b"333" + b"1" * 69_997 + b"2" * 10 + b"1" * 29_990


# -- hidden -----------------------------------------------------------------------------------


def test_nothing_that_lists_comes_into_it(workspace: Mounted) -> None:
    top = workspace.mountpoint
    make_first(top)
    first, checkpoint = state_of(top), workspace.checkpoint(label="first")
    assert ".cowfs" not in os.listdir(top)
    assert ".cowfs" not in tool("find", top)[1]
    assert tool("sh", "-c", f"cd {top} && echo .c*") == (0, ".c*\n")
    if shutil.which("git"):
        tool("git", "init", "-q", top)
        assert ".cowfs" not in tool("git", "-C", top, "status", "--porcelain", "-uall")[1]
        tool("git", "-C", top, "clean", "-ffdxq")
    assert tool("sh", "-c", f"cd {top} && rm -rf * .[!.]*") == (0, "")
    assert os.listdir(top) == []
    assert tool("find", top, "-delete")[0] == 1  # the mountpoint itself is busy
    assert_shows(workspace, checkpoint, first)
    assert_shows(workspace, "first", first)


def test_what_is_listed(workspace: Mounted) -> None:
    (start,) = os.listdir(checkpoints(workspace))
    one = workspace.checkpoint(label="one")
    two = workspace.checkpoint(label="release/1.2")
    place = checkpoints(workspace)
    assert os.listdir(workspace.mountpoint / ".cowfs") == ["checkpoints"]
    assert sorted(os.listdir(place)) == sorted([start, one, two, "one", "release"])
    assert os.listdir(place / "release") == ["1.2"]
    assert os.readlink(place / "one") == one
    assert os.readlink(place / "release/1.2") == f"../{two}"
    assert os.path.realpath(place / "release/1.2") == str(place / two)
    assert os.readlink(place / two[:8]) == two
    kinds = {entry.name: entry.is_dir(follow_symlinks=False) for entry in os.scandir(place)}
    assert kinds == {start: True, one: True, two: True, "one": False, "release": True}
    assert errno_of(os.stat, place / "nothing") == "ENOENT"
    assert errno_of(os.stat, place / one[:3]) == "ENOENT"
    assert errno_of(os.stat, place / ("x" * 255)) == "ENOENT"
    assert errno_of(os.stat, place / ("x" * 256)) == "ENAMETOOLONG"
    assert errno_of(os.stat, place / "release" / ("x" * 255)) == "ENOENT"
    assert errno_of(os.stat, place / one / ("x" * 256)) == "ENAMETOOLONG"
    assert errno_of(os.stat, workspace.mountpoint / ".cowfs/nothing") == "ENOENT"
    assert errno_of(os.stat, place / one / ".cowfs") == "ENOENT"
    assert errno_of(os.stat, workspace.mountpoint / "d/.cowfs") == "ENOENT"
    st = os.stat(place / one)
    for above in (place / one / "..", workspace.mountpoint / ".cowfs/checkpoints"):
        assert os.path.samestat(os.stat(above), os.stat(place))
    assert st.st_dev == os.stat(workspace.mountpoint).st_dev
    assert workspace.call("status")["health"]["problems"] == []


# -- read only --------------------------------------------------------------------------------


def test_nothing_can_be_changed(workspace: Mounted) -> None:
    top = workspace.mountpoint
    make_first(top)
    first, checkpoint = state_of(top), workspace.checkpoint()
    old = browse(workspace, checkpoint)
    above = "EACCES" if os.geteuid() else "EROFS"  # the kernel asks the modes first
    changes: list[tuple[Callable[[], object], str]] = [
        (lambda: os.open(old / "stays", os.O_RDWR), "EROFS"),
        (lambda: os.open(old / "stays", os.O_RDONLY | os.O_TRUNC), "EROFS"),
        (lambda: os.open(old / "new", os.O_WRONLY | os.O_CREAT), "EROFS"),
        (lambda: os.truncate(old / "stays", 1), "EROFS"),
        (lambda: os.mkdir(old / "new"), "EROFS"),
        (lambda: os.mkfifo(old / "new"), "EROFS"),
        (lambda: os.symlink("x", old / "new"), "EROFS"),
        (lambda: os.link(old / "stays", old / "new"), "EROFS"),
        (lambda: os.link(top / "stays", old / "new"), "EROFS"),
        (lambda: linkat(old / "stays", top / "new"), "EXDEV"),
        (lambda: os.unlink(old / "stays"), "EROFS"),
        (lambda: os.rmdir(old / "dir/sub"), "EROFS"),
        (lambda: os.rename(old / "stays", old / "new"), "EROFS"),
        (lambda: os.rename(old / "stays", top / "new"), "EROFS"),
        (lambda: os.rename(top / "stays", old / "new"), "EROFS"),
        (lambda: renameat2(top / "stays", old / "stays", 2), "EROFS"),
        (lambda: os.chmod(old / "stays", 0o600), "EROFS"),
        (lambda: os.chown(old / "stays", -1, os.getgid()), "EROFS"),
        (lambda: os.utime(old / "stays"), "EROFS"),
        (lambda: os.setxattr(old / "stays", "user.x", b"1"), "EROFS"),
        (lambda: os.removexattr(old / "mode", "user.note"), "EROFS"),
        (lambda: os.rmdir(old), above),
        (lambda: os.mkdir(checkpoints(workspace) / "new"), above),
        (lambda: os.rename(old, checkpoints(workspace) / "new"), above),
        (lambda: os.mkdir(top / ".cowfs/new"), above),
        (lambda: os.rmdir(checkpoints(workspace)), above),
    ]
    for number, (change, expected) in enumerate(changes):
        assert errno_of(change) == expected, f"change {number}"
    assert tool("rm", "-rf", old / "dir")[0] == 1
    assert_shows(workspace, checkpoint, first)
    assert_same(state_of(top), first)


def test_the_name_can_be_neither_made_nor_removed(workspace: Mounted) -> None:
    top = workspace.mountpoint
    (top / "d").mkdir()
    write_file(top / "f", b"f")
    name = top / ".cowfs"
    assert errno_of(os.mkdir, name) == "EEXIST"
    assert errno_of(os.symlink, "x", name) == "EEXIST"
    assert errno_of(os.mkfifo, name) == "EEXIST"
    assert errno_of(os.link, top / "f", name) == "EEXIST"
    assert errno_of(os.open, name, os.O_CREAT | os.O_EXCL | os.O_WRONLY) == "EEXIST"
    assert errno_of(os.open, name, os.O_CREAT | os.O_WRONLY) == "EISDIR"
    assert errno_of(os.rename, top / "d", name) == "EEXIST"
    assert errno_of(os.rename, top / "f", name) == "EISDIR"
    assert errno_of(os.rename, name, top / "mine") == "EPERM"
    assert errno_of(renameat2, top / "d", name, 2) in ("EEXIST", "EPERM")
    assert errno_of(os.rmdir, name) == "EPERM"
    assert errno_of(os.unlink, name) in ("EISDIR", "EPERM")
    (top / "d/.cowfs").mkdir()  # only the top has it
    assert sorted(os.listdir(top)) == ["d", "f"]


# -- a project that has the name itself --------------------------------------------------------


@pytest.mark.parametrize("kind", ["directory", "file"])
def test_a_projects_own(mount: MountFunction, base: Path, kind: str) -> None:
    """It goes first: it is the project's, and what is in it must be reachable."""
    own = base / ".cowfs"
    if kind == "directory":
        (own / "checkpoints").mkdir(parents=True)
        write_file(own / "checkpoints/mine", b"mine")
    else:
        write_file(own, b"mine")
    mounted = mount(base)
    top = mounted.mountpoint
    assert os.listdir(top) == [".cowfs"]
    before, checkpoint = state_of(top), mounted.checkpoint()
    watcher = Inotify()
    watcher.watch(top, Inotify.CREATE | Inotify.DELETE | Inotify.MOVED_TO)
    os.rename(top / ".cowfs", top / "moved")
    assert os.listdir(top) == ["moved"]
    assert_shows(mounted, checkpoint, before)  # as long as there is none of its own
    assert errno_of(os.rename, top / "moved", top / ".cowfs") in ("EEXIST", "EISDIR")
    watcher.events()
    mounted.restore(checkpoint)
    assert_same(state_of(top), before)
    assert b".cowfs" in {name for _, name in watcher.events()}
    watcher.close()
    if kind == "directory":
        shutil.rmtree(top / ".cowfs")
    else:
        os.unlink(top / ".cowfs")
    assert os.listdir(top) == []
    assert_shows(mounted, checkpoint, before)
    mounted.restore(checkpoint)
    os.rename(top / ".cowfs", top / "moved")
    os.rename(top / "moved", top / "again")
    mounted.unmount(apply=True)
    assert os.listdir(base) == ["again"]


# -- tools ------------------------------------------------------------------------------------


def test_diff_and_cp(workspace: Mounted, tmp_path: Path) -> None:
    """They take two files with the same device and inode number for one: so none has both."""
    top = workspace.mountpoint
    make_first(top)
    os.unlink(top / "fifo")
    checkpoint = workspace.checkpoint(label="then")
    old = browse(workspace, checkpoint)
    assert tool("diff", "-r", "--no-dereference", old, top) == (0, "")
    write_file(top / "dir/f1", b"X")  # as long as before
    os.utime(top / "dir/f1", ns=(1, os.stat(old / "dir/f1").st_mtime_ns))
    code, text = tool("diff", "-r", "--no-dereference", f"{browse(workspace, 'then')}/", top)
    assert code == 1
    assert text.splitlines()[1:] == [
        "1c1",
        "< 1",
        "\\ No newline at end of file",
        "---",
        "> X",
        "\\ No newline at end of file",
    ]
    numbers = {e.ino for e in listing(top).values()}
    assert not numbers & {e.ino for e in listing(old).values()}

    assert tool("cp", "-a", old, tmp_path / "copy") == (0, "")
    assert difference(portable(listing(old)), portable(listing(tmp_path / "copy"))) == []
    copied, seen = listing(tmp_path / "copy"), listing(old)
    for one, two in (("stays", "dir/hard"), ("grows", "second")):
        assert seen[one].ino == seen[two].ino
        assert copied[one].ino == copied[two].ino
    assert tool("cp", old / "dir/f1", top / "dir/f1") == (0, "")  # back from then
    assert tool("diff", "-r", "--no-dereference", old, top) == (0, "")
    assert tool("cp", "-a", "--update=all", old / "dir", top / "other")[0] in (0, 1)


def test_a_program_runs_from_it(workspace: Mounted) -> None:
    top = workspace.mountpoint
    shutil.copy("/bin/true", top / "program")
    write_file(top / "script", b"#!/bin/sh\necho then\n", 0o755)
    checkpoint = workspace.checkpoint()
    write_file(top / "script", b"#!/bin/sh\necho now\n", 0o755)
    os.unlink(top / "program")
    assert tool(browse(workspace, checkpoint) / "script") == (0, "then\n")
    assert tool(browse(workspace, checkpoint) / "program") == (0, "")


def test_room_is_that_of_the_mount(workspace: Mounted) -> None:
    checkpoint = workspace.checkpoint()
    here, there = os.statvfs(workspace.mountpoint), os.statvfs(browse(workspace, checkpoint))
    assert (here.f_bsize, here.f_namemax) == (there.f_bsize, there.f_namemax)


# -- while other things happen ------------------------------------------------------------------


def test_open_files_and_working_directories(filled: Mounted) -> None:
    top = filled.mountpoint
    make_first(top)
    first, one = state_of(top), filled.checkpoint()
    make_second(top)
    filled.checkpoint()
    old = browse(filled, one)
    watcher = Inotify()
    with opened(old / "rewritten") as fd, opened(old / "dir") as directory:
        watcher.watch(old / "rewritten", Inotify.MODIFY | Inotify.DELETE)
        watcher.watch(old / "dir", Inotify.CREATE | Inotify.DELETE)
        filled.restore(one)
        shutil.rmtree(top / "dir")
        filled.call("undo")
        assert read_all(fd) == b"rewritten" * 20_000
        assert sorted(os.listdir(directory)) == sorted(os.listdir(old / "dir"))
        os.fsync(fd)
        os.fsync(directory)
        assert watcher.events() == []

        def inside() -> None:
            os.chdir(old / "dir")
            assert os.stat("../stays").st_size == 5 * 20_000
            assert os.getcwd() == str(old / "dir")
            with pytest.raises(RpcError) as raised:
                filled.call("unmount")
            assert raised.value.error["code"] == "COWFS_BUSY"

        in_child(inside)
        with pytest.raises(RpcError) as raised:
            filled.call("unmount")
        assert raised.value.error["code"] == "COWFS_BUSY"
    watcher.close()
    assert_shows(filled, one, first)
    filled.unmount(apply=True)
    assert not (filled.base / ".cowfs").exists()


def test_another_life(mount: MountFunction, base: Path) -> None:
    fill_base(base)
    mounted = mount(base)
    make_first(mounted.mountpoint)
    first, one = state_of(mounted.mountpoint), mounted.checkpoint(label="one")
    make_second(mounted.mountpoint)
    assert_shows(mounted, one, first)
    mounted.unmount(apply=True)
    again = mount(base, mounted.store)
    shutil.rmtree(again.mountpoint / "dir")
    assert_shows(again, "one", first)


# -- others -----------------------------------------------------------------------------------


def test_other_users_see_what_the_modes_of_then_permit(others_mount: Mounted) -> None:
    top = others_mount.mountpoint
    write_file(top / "open", b"open", 0o644)
    write_file(top / "closed", b"closed", 0o600)
    (top / "private").mkdir(0o700)
    write_file(top / "private/f", b"f", 0o644)
    write_file(top / "theirs", b"theirs", 0o600)
    os.chown(top / "theirs", NOBODY, NOBODY)
    checkpoint = others_mount.checkpoint()
    os.chmod(top / "open", 0o600)
    os.chmod(top / "closed", 0o644)
    os.chown(top / "theirs", 0, 0)
    old = browse(others_mount, checkpoint)

    def look() -> None:
        assert (old / "open").read_bytes() == b"open"  # it could be read then
        assert errno_of(os.open, old / "closed", os.O_RDONLY) == "EACCES"
        assert errno_of(os.listdir, old / "private") == "EACCES"
        assert errno_of(os.stat, old / "private/f") == "EACCES"
        assert (old / "theirs").read_bytes() == b"theirs"
        assert errno_of(os.open, old / "theirs", os.O_WRONLY) == "EROFS"
        assert errno_of(os.mkdir, old / "new") in ("EACCES", "EROFS")
        assert checkpoint in os.listdir(checkpoints(others_mount))

    in_child(look, uid=NOBODY)
    os.chmod(top, 0o700)  # who may not enter the workspace does not get to its past
    in_child(lambda: _must_be_closed(old), uid=NOBODY)
    os.chmod(top, 0o755)


def _must_be_closed(old: Path) -> None:
    assert errno_of(os.stat, old) == "EACCES"


# -- many -------------------------------------------------------------------------------------


@pytest.fixture
def with_many(tmp_path: Path, base: Path) -> tuple[Path, list[str]]:
    """A store with 700 checkpoints; a file `f` has the number of each."""
    store = tmp_path / "store"
    store.mkdir()
    rig, ids = Rig(store, base), []
    rig.mkdir(b"d")
    for number in range(700):
        rig.save(b"d/f", b"%d" % number)
        ids.append(history.seal(rig.volume, AUTHOR).checkpoint.id)
    rig.finish()
    return store, ids


def test_what_the_kernel_keeps_is_bounded(
    mount: MountFunction, base: Path, with_many: tuple[Path, list[str]]
) -> None:
    store, ids = with_many
    mounted = mount(base, store)
    assert len(os.listdir(checkpoints(mounted))) >= 700
    assert mounted.call("status")["browsed"] == 0
    with opened(browse(mounted, ids[0]) / "d/f") as held:
        for number, checkpoint in enumerate(ids):
            assert (browse(mounted, checkpoint) / "d/f").read_bytes() == b"%d" % number
        with mounted.client() as client:
            eventually(lambda: client.call("status")["browsed"] <= 600)
        assert os.pread(held, 9, 0) == b"0"
        for number, checkpoint in enumerate(ids[:50]):  # the numbers of views are others' now
            st = os.stat(browse(mounted, checkpoint) / "d/f")
            assert stat.S_ISREG(st.st_mode)
            assert (browse(mounted, checkpoint) / "d/f").read_bytes() == b"%d" % number


def test_a_large_directory(workspace: Mounted) -> None:
    top = workspace.mountpoint
    (top / "d").mkdir()
    for number in range(3000):
        os.symlink(str(number), top / f"d/{number}")
    checkpoint = workspace.checkpoint()
    shutil.rmtree(top / "d")
    old = browse(workspace, checkpoint) / "d"
    assert {entry.name: os.readlink(entry.path) for entry in os.scandir(old)} == {
        str(number): str(number) for number in range(3000)
    }


# -- removed checkpoints --------------------------------------------------------------------------


def test_a_checkpoint_that_is_removed_meanwhile(filled: Mounted) -> None:
    """It is an error for who looks at it, not another state; the others stay as they are."""
    top = filled.mountpoint
    make_first(top)
    first, one = state_of(top), filled.checkpoint()
    make_second(top)
    two = filled.checkpoint(label="two")
    shutil.rmtree(top / "dir")
    filled.checkpoint()
    old = browse(filled, two)
    with opened(old / "rewritten") as fd, opened(old, os.O_RDONLY | os.O_DIRECTORY) as directory:
        assert os.pread(fd, 4, 0) == b"rewr"
        filled.call("forget", checkpoints=[two])
        filled.call("gc")
        assert two not in os.listdir(checkpoints(filled))
        for name in (two, two[:8], "two"):
            assert errno_of(os.stat, checkpoints(filled) / name) == "ENOENT"
        assert errno_of(os.pread, fd, 4, 100_000) in ("ESTALE", "")  # the kernel may have it
        assert errno_of(os.stat, "base1/one", dir_fd=directory) == "ESTALE"
        assert errno_of(os.listdir, directory) == "ESTALE"
    assert_shows(filled, one, first)
    third, three = state_of(top), filled.checkpoint()
    assert_shows(filled, three, third)
