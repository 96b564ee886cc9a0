"""Lives of a mount: beginning at once, importing lazily, ending in every way, beginning again."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import stat
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cowfs.client.rpc import RpcError
from cowfs.daemon.standby import is_exiting
from cowfs.mount.loop import Loop, LoopEndedError
from tests.conftest import MountFunction
from tests.mount.calls import child_process, drop_caches, errno_of, eventually, opened, write_file
from tests.mount.mounts import kill, killed_and_mounted_again
from tests.mount.states import assert_same, fill_base, make_first, make_second, state_of
from tests.mount.steps import expected, operations
from tests.support import mounting
from tests.support.listing import difference, listing, portable
from tests.support.mounting import Mounted, MountRefusedError, remove_mounts
from tests.support.volumes import Rig

_SECONDS = 30
_CONTROL = "/sys/fs/fuse/connections"

needs_abort = pytest.mark.skipif(
    os.geteuid() != 0 and not os.path.ismount(_CONTROL),
    reason=f"a user can abort a connection only where {_CONTROL} is mounted",
)


def base_as_the_daemon_sees_it(mounted: Mounted) -> str:
    """The base directory below an in-place mount, through the daemon's descriptor."""
    hidden = []
    for name in os.listdir(f"/proc/{mounted.pid}/fd"):
        place = f"/proc/{mounted.pid}/fd/{name}"
        with contextlib.suppress(OSError):
            is_base = os.readlink(place) == str(mounted.base)
            if is_base and os.stat(place).st_dev != os.stat(mounted.mountpoint).st_dev:
                hidden.append(place)
    assert hidden, "the daemon has the base directory open"
    return f"{hidden[0]}/."


def everything(directory: str | Path) -> list[str]:
    """What a directory of an ordinary file system has, times included, one line for each path."""
    lines = []
    for path, entry in listing(directory).items():
        st = os.lstat(os.path.join(directory, path))
        lines.append(f"{path} {entry} {st.st_mtime_ns} {st.st_ctime_ns} {st.st_nlink}")
    return lines


def wait_until_imported(mounted: Mounted) -> None:
    """Return when the background walk over the base is done."""
    with mounted.client() as client:
        eventually(lambda: bool(client.call("status")["import"]["complete"]))


# -- the beginning ------------------------------------------------------------------------------


def test_mounting_does_not_wait_for_the_tree(mount: MountFunction, base: Path) -> None:
    for number in range(1000):
        directory = base / f"d{number % 10}/e{number}"
        directory.mkdir(parents=True)
        for name in range(10):
            os.mknod(directory / f"f{name}")
    mounted = mount(base)
    at_once = mounted.call("status")["import"]
    assert not at_once["complete"]
    assert at_once["directories"] < 1011
    assert at_once["files"] < 10_000
    # What is looked at comes first.
    assert len(os.listdir(base / "d9/e999")) == 10
    write_file(base / "d3/e3/f3", b"changed before the walk comes by")
    shutil.rmtree(base / "d4/e4")
    os.rename(base / "d5", base / "moved")
    wait_until_imported(mounted)
    found = mounted.call("status", flush=True)
    assert found["import"]["directories"] == 1011
    assert found["changes"]["created"] == 0
    assert found["changes"]["modified"] == 1
    assert (base / "d3/e3/f3").read_bytes() == b"changed before the walk comes by"
    assert not (base / "d4/e4").exists()
    assert len(os.listdir(base / "moved")) == 100
    assert sorted(os.listdir(base / "moved/e995")) == [f"f{n}" for n in range(10)]


@pytest.mark.parametrize("in_place", [True, False])
def test_the_imported_tree_is_the_base(
    mount: MountFunction, base: Path, tmp_path: Path, in_place: bool
) -> None:
    fill_base(base)
    make_first(base)
    os.symlink(b"\xff not UTF-8", os.fsencode(base) + b"/\xfe")
    write_file(base / "closed", b"secret", 0 if os.geteuid() == 0 else 0o400)
    if os.geteuid() == 0:
        os.mknod(base / "device", stat.S_IFCHR | 0o600, os.makedev(1, 3))
        os.chown(base / "closed", 12, 34)
        os.setxattr(base / "stays", "trusted.x", b"1")
    right = state_of(base)
    at = tmp_path / "at"
    at.mkdir()
    mounted = mount(base, None, None if in_place else at)
    found = state_of(mounted.mountpoint)
    assert not difference(portable(right.entries), portable(found.entries))
    assert found.ctimes == right.ctimes
    for directory in ("dir", "base0/deep"):
        assert found.entries[directory].nlink == right.entries[directory].nlink
    one, again = (found.entries[p] for p in ("base0/one", "base0/deep/one-again"))
    assert one.ino == again.ino
    counts = mounted.call("status", flush=True)["changes"]
    assert counts == {"created": 0, "modified": 0, "deleted": 0}, "reading changes nothing"
    if not in_place:
        assert state_of(base) == right, "the directory itself stays visible"


def test_reading_stores_nothing(mount: MountFunction, base: Path) -> None:
    write_file(base / "big", os.urandom(20 << 20))
    mounted = mount(base)
    wait_until_imported(mounted)
    mounted.call("flush")
    before = mounted.call("status")["store_bytes"]
    (base / "big").read_bytes()
    subprocess.run(["grep", "-r", "--binary-files=text", "nothing", base], check=False)
    mounted.call("flush")
    assert mounted.call("status")["store_bytes"] - before < 1 << 20


def test_the_kernel_may_forget_everything(mount: MountFunction, base: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("dropping the kernel's caches needs root")
    for number in range(1000):
        write_file(base / f"f{number}", b"%d" % number)
    mounted = mount(base)
    for number in range(0, 1000, 2):
        write_file(base / f"f{number}", b"changed %d" % number)
    right = state_of(base)
    held = os.open(base / "f7", os.O_RDONLY)
    mounted.call("flush")
    wait_until_imported(mounted)
    drop_caches()
    with mounted.client() as client:  # the kernel's FORGETs come on their own
        eventually(lambda: bool(client.call("status")["inodes_in_memory"] < 300))
    assert os.pread(held, 10, 0) == b"7"
    assert_same(state_of(base), right)
    os.close(held)


def test_many_open_base_files(mount: MountFunction, base: Path) -> None:
    for number in range(400):
        write_file(base / f"f{number}", b"%d" % number * 100)
    mounted = mount(base)
    with contextlib.ExitStack() as stack:
        fds = [stack.enter_context(opened(base / f"f{number}")) for number in range(400)]
        for _ in range(2):
            for number, fd in enumerate(fds):
                assert os.pread(fd, 1000, 0) == b"%d" % number * 100
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    assert len(os.listdir(f"/proc/{mounted.pid}/fd")) < 300


@pytest.mark.parametrize(
    "name", [b"with space", b"back\\slash,comma", b"new\nline", "ü%41".encode(), b"\xff\xfe"]
)
def test_paths_of_any_bytes(mount: MountFunction, tmp_path: Path, name: bytes) -> None:
    base = tmp_path / os.fsdecode(name)
    base.mkdir()
    write_file(base / "f", b"from the base")
    mounted = mount(base)
    assert mounted.is_mounted()
    assert (base / "f").read_bytes() == b"from the base"
    write_file(base / "f", b"changed")
    mounted.checkpoint()
    again = killed_and_mounted_again(mounted, mount)
    assert (base / "f").read_bytes() == b"changed"
    again.unmount()
    assert (base / "f").read_bytes() == b"from the base"


@needs_abort
@pytest.mark.parametrize("operation", ["checkpoint", "restore"])
def test_killed_while_it_calls_through_its_own_mount(
    mount: MountFunction, base: Path, operation: str
) -> None:
    """Files that are open for writing make the daemon call: a thread of it then waits for an answer
    that nobody will give. Others are not left hanging, and the next mount finds everything."""
    mounted = mount(base)
    names = [f"f{number}" for number in range(20)]
    for name in names:
        write_file(base / name, b"first" * 100)
    kept = mounted.checkpoint()
    before = state_of(base)
    for _ in range(5):
        with contextlib.ExitStack() as stack:
            fds = [stack.enter_context(opened(base / name, os.O_RDWR)) for name in names]
            stack.enter_context(_again_and_again(lambda: _overwrite(fds)))  # noqa: B023
            stack.enter_context(_again_and_again(lambda: _do(mounted, operation, kept)))  # noqa: B023
            time.sleep(0.15)  # many operations; which part of one the kill meets is left to chance
            mounted.process.kill()
            assert mounted.process.wait(10) == -signal.SIGKILL
            assert errno_of(os.listdir, base) == "ENOTCONN"
        mounted = killed_and_mounted_again(mounted, mount)
        mounted.restore(kept)
        assert_same(state_of(base), before)


def _overwrite(fds: list[int]) -> None:
    for fd in fds:
        os.pwrite(fd, b"other" * 10, 0)


def _do(mounted: Mounted, operation: str, kept: str) -> None:
    if operation == "restore":
        mounted.restore(kept)
    else:
        mounted.checkpoint()


@contextlib.contextmanager
def _again_and_again(step: Callable[[], None]) -> Iterator[None]:
    """A process that does the same until it fails, or the block ends."""
    pid = os.fork()
    if pid == 0:
        try:
            while True:
                step()
        finally:
            os._exit(0)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def test_store_and_socket_are_private(mount: MountFunction, base: Path) -> None:
    mounted = mount(base)
    assert stat.S_IMODE(os.stat(mounted.store).st_mode) == 0o700
    assert stat.S_IMODE(os.stat(mounted.store / "control.sock").st_mode) == 0o600
    assert int((mounted.store / "daemon.pid").read_text()) == mounted.pid


def test_a_store_is_mounted_once(mount: MountFunction, base: Path, tmp_path: Path) -> None:
    first = mount(base)
    write_file(base / "f", b"kept")
    at = tmp_path / "at"
    at.mkdir()
    with pytest.raises(MountRefusedError) as refused:
        mount(base, first.store, at)
    assert refused.value.error["code"] in ("COWFS_STORE_LOCKED", "COWFS_STORE_FOREIGN")
    assert (base / "f").read_bytes() == b"kept"
    assert first.call("status")["pid"] == first.pid


def test_two_workspaces_at_once(mount: MountFunction, tmp_path: Path) -> None:
    bases = [tmp_path / name for name in ("one", "two")]
    for base in bases:
        base.mkdir()
        write_file(base / "f", base.name.encode())
    mounts = [mount(base) for base in bases]
    checkpoints = [mounted.checkpoint() for mounted in mounts]
    for base in bases:
        write_file(base / "f", b"changed " + base.name.encode())
        write_file(base / f"only-{base.name}", b"")
    with pytest.raises(RpcError) as refused:
        mounts[1].restore(checkpoints[0])
    assert refused.value.error["code"] == "COWFS_UNKNOWN_CHECKPOINT"
    mounts[0].restore(checkpoints[0])
    assert os.listdir(bases[0]) == ["f"]
    assert (bases[0] / "f").read_bytes() == b"one"
    assert (bases[1] / "f").read_bytes() == b"changed two"
    assert sorted(os.listdir(bases[1])) == ["f", "only-two"]
    assert os.stat(bases[0]).st_dev != os.stat(bases[1]).st_dev


# -- the base -----------------------------------------------------------------------------------


def test_the_base_is_never_written_while_mounted(mount: MountFunction, base: Path) -> None:
    fill_base(base)
    make_first(base)
    before = everything(base)
    mounted = mount(base)
    hidden = base_as_the_daemon_sees_it(mounted)
    assert everything(hidden) == before
    checkpoint = mounted.checkpoint()
    make_second(base)
    with opened(base / "stays", os.O_RDWR | os.O_TRUNC) as fd:
        os.write(fd, b"truncated and written")
        os.fsync(fd)
        os.fchmod(fd, 0o777)
    mounted.restore(checkpoint)
    mounted.call("undo")
    shutil.rmtree(base / "dir")
    mounted.checkpoint()
    assert everything(hidden) == before
    mounted.unmount(apply=False)
    assert everything(base) == before


# -- the end ------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_it_in_order(
    mount: MountFunction, base: Path, number: signal.Signals
) -> None:
    mounted = mount(base)
    fd = os.open(base / "f", os.O_CREAT | os.O_RDWR)
    data = os.urandom(5 << 20)
    os.write(fd, data)  # in the kernel, not in the daemon
    mounted.process.send_signal(number)
    assert mounted.process.wait(_SECONDS) == 0
    assert not mounted.is_mounted()
    assert not (mounted.store / "daemon.pid").exists()
    assert not (mounted.store / "control.sock").exists()
    with contextlib.suppress(OSError):
        os.close(fd)
    assert os.listdir(base) == [], "the base is as it was"
    mount(base)
    assert (base / "f").read_bytes() == data


@pytest.mark.parametrize("how", ["signal", "unmount"])
def test_it_ends_while_it_calls_through_its_own_mount(
    mount: MountFunction, base: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Files that were held during a restore were closed: the daemon looks at each through the
    mount, which it has to serve until it has seen the one it is at. It leaves the others."""
    monkeypatch.setattr(mounting, "DAEMON", "tests.mount.slow")
    mounted = mount(base)
    paths = [base / f"f{number}" for number in range(20)]
    for path in paths:
        write_file(path, b"first")
    kept = mounted.checkpoint()
    looks = mounted.store / "looking"
    with contextlib.ExitStack() as stack:
        for path in paths:
            os.write(stack.enter_context(opened(path, os.O_RDWR)), b"later")
        mounted.restore(kept)
    eventually(lambda: looks.exists() and looks.read_bytes() != b"")
    if how == "signal":
        mounted.process.terminate()
    else:
        mounted.call("unmount", force=True)
    assert mounted.process.wait(_SECONDS) == 0
    assert not mounted.is_mounted()
    assert looks.read_bytes() == b"."


def test_nothing_is_handed_to_a_request_loop_that_has_ended(
    volume: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody would take it up; who calls it for many files would wait for each."""
    loop = Loop(volume.volume, "", set())
    reading, writing = os.pipe()
    os.close(writing)
    loop.device.fd = reading
    loop.run()
    os.close(reading)
    handed: list[object] = []
    monkeypatch.setattr(loop, "post", handed.append)
    with pytest.raises(LoopEndedError):
        loop.call(lambda: None)
    assert not handed


def test_umount_from_outside_ends_it_in_order(mount: MountFunction, base: Path) -> None:
    mounted = mount(base)
    write_file(base / "f", b"written" * 100_000)
    state = state_of(base)
    tool = ["umount"] if os.geteuid() == 0 else ["fusermount3", "-u"]
    subprocess.run([*tool, base], check=True)
    assert mounted.process.wait(_SECONDS) == 0
    assert not (mounted.store / "daemon.pid").exists()
    mount(base)
    assert_same(state_of(base), state)


def test_lazy_umount_from_outside_serves_its_holders_to_the_end(
    mount: MountFunction, base: Path
) -> None:
    mounted = mount(base)
    fd = os.open(base / "f", os.O_CREAT | os.O_RDWR)
    remove_mounts(mounted.mountpoint)
    assert os.listdir(base) == []
    os.write(fd, b"written after it was detached")
    os.fsync(fd)
    assert os.pread(fd, 7, 0) == b"written"
    assert mounted.process.poll() is None
    os.close(fd)
    assert mounted.process.wait(_SECONDS) == 0
    mount(base)
    assert (base / "f").read_bytes() == b"written after it was detached"


def test_unmount_waits_for_nobody_but_says_who(mount: MountFunction, base: Path) -> None:
    mounted = mount(base)
    (base / "d").mkdir()
    write_file(base / "f", b"x" * 100)
    sleeper = ["sleep", "1000"]
    holders: list[Callable[[], contextlib.AbstractContextManager[int]]] = [
        lambda: child_process(sleeper, cwd=base / "d"),
        lambda: child_process(sleeper, stdin=base / "f"),
    ]
    for hold in holders:
        with hold() as pid:
            with pytest.raises(RpcError) as refused:
                mounted.call("unmount")
            error = refused.value.error
            assert error["code"] == "COWFS_BUSY"
            assert f"sleep (pid {pid}: " in error["message"]
            assert str(base) in error["message"]
            assert mounted.is_mounted()
            assert (base / "f").read_bytes() == b"x" * 100
    answer = mounted.unmount()
    assert answer["mountpoint"] == str(base)
    assert not mounted.is_mounted()


def test_forced_unmount(mount: MountFunction, base: Path) -> None:
    mounted = mount(base)
    write_file(base / "f", b"stored")
    (base / "d").mkdir()
    with child_process(["sleep", "1000"], cwd=base / "d"):
        fd = os.open(base / "f", os.O_RDWR)
        os.pwrite(fd, b"dirty!", 0)
        mounted.call("unmount", force=True)
        assert mounted.process.wait(_SECONDS) == 0
        assert not mounted.is_mounted()
        with contextlib.suppress(OSError):
            os.close(fd)
    mount(base)
    assert (base / "f").read_bytes() == b"dirty!"


# -- beginning again ----------------------------------------------------------------------------


def test_everything_is_the_same_after_a_remount(mount: MountFunction, base: Path) -> None:
    fill_base(base)
    mounted = mount(base)
    make_first(base)
    make_second(base)
    state = state_of(base)
    mounted.unmount()
    second = mount(base)
    assert_same(state_of(base), state)
    assert second.call("status", flush=True)["changes"]["deleted"] > 0
    wait_until_imported(second)
    again = killed_and_mounted_again(second, mount)
    assert_same(state_of(base), state)
    assert again.call("status", flush=True)["health"]["state"] == "ok"


def test_a_dead_mount_answers_and_is_replaced(mount: MountFunction, base: Path) -> None:
    mounted = mount(base)
    write_file(base / "f", b"synced")
    fd = os.open(base / "f", os.O_RDWR)
    os.fsync(fd)
    kill(mounted)
    with pytest.raises(OSError, match="not connected"):
        os.listdir(base)
    with contextlib.suppress(OSError):
        os.close(fd)
    remove_mounts(mounted.mountpoint)
    mount(base)
    assert (base / "f").read_bytes() == b"synced"


@pytest.mark.parametrize("steps", [1, 60, 500, 1500])
def test_what_a_killed_daemon_leaves_is_the_state_of_one_moment(
    mount: MountFunction, base: Path, steps: int
) -> None:
    mounted = mount(base)
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            for step in operations(base):
                os.write(writing, step[:1].encode())
        finally:
            os._exit(0)
    os.close(writing)
    done = 0
    while done < steps:
        done += len(os.read(reading, 1))
    kill(mounted)
    while piece := os.read(reading, 1 << 16):
        done += len(piece)
    os.close(reading)
    os.waitpid(pid, 0)
    remove_mounts(mounted.mountpoint)
    mount(base)
    state = listing(base)
    names = set(state) - {"."}
    found = [n for n in range(done + 2) if expected(n)[0] == names]
    # Between create and write of a small file there is one state more.
    found += [n for n in range(done + 2) if expected(n + 1)[0] == names and n not in found]
    assert found, f"{sorted(names)} was never the state (of {done} steps)"
    for path in names:
        if path.startswith("renamed"):
            content = (base / path).read_bytes()
            assert content == path.removeprefix("renamed").encode()
    if "journal" in names:
        # It was never closed: the kernel may have kept its data, but not in part.
        journal = (base / "journal").read_bytes()
        assert expected(done + 1)[1].startswith(journal)


def test_a_process_that_has_ended_is_seen_before_anybody_waits_for_it() -> None:
    """What the process that stands by looks at when no signal tells it of the daemon's end."""
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    assert is_exiting(child)
    os.waitpid(child, 0)
    assert is_exiting(child)
    assert not is_exiting(os.getpid())
