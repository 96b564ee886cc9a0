"""`cowfs unmount` and `cowfs apply`."""

from __future__ import annotations

import contextlib
import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cli.command import Cowfs
from tests.cli.test_mount import is_mounted
from tests.mount.calls import mount_at, umount
from tests.support.namespaces import elsewhere

pytestmark = pytest.mark.usefixtures("own_processes")

_HOLD = "import sys; file = open(sys.argv[1]); print(flush=True); sys.stdin.read()"


@contextmanager
def holder(path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that has a file open until its stdin is closed."""
    with subprocess.Popen(
        [sys.executable, "-c", _HOLD, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"\n"
            yield process
        finally:
            process.kill()


def test_unmount_applies_what_was_done(cowfs: Cowfs, mounted: Path) -> None:
    (mounted / "new").write_text("x")
    (mounted / "readme").write_text("other\n")
    (mounted / "src" / "main.c").unlink()
    store = Path(cowfs.ok("status")["store"])
    answer = cowfs.ok("unmount", mounted, cwd=cowfs.top)
    assert answer["mountpoint"] == str(mounted)
    applied = answer["applied"]
    assert (applied["created"], applied["written"], applied["deleted"]) == (1, 1, 1)
    assert cowfs.mounts() == []
    assert not (store / "daemon.pid").exists()
    assert (mounted / "new").read_text() == "x"
    assert (mounted / "readme").read_text() == "other\n"
    assert os.listdir(mounted / "src") == []


def test_no_apply_leaves_the_directory(cowfs: Cowfs, mounted: Path) -> None:
    (mounted / "new").write_text("x")
    assert cowfs.ok("unmount", mounted, "--no-apply", cwd=cowfs.top)["applied"] is None
    assert not (mounted / "new").exists()
    cowfs.cwd = cowfs.top
    assert cowfs.run("-C", mounted, "apply", "--dry-run", "--json").document["created"] == 1
    assert not (mounted / "new").exists()
    assert cowfs.run("-C", mounted, "apply", "--json").document["created"] == 1
    assert (mounted / "new").read_text() == "x"
    assert "nothing to do" in cowfs.says("-C", mounted, "apply")


def test_the_command_itself_does_not_hold_it(cowfs: Cowfs, mounted: Path) -> None:
    assert cowfs.ok("unmount", cwd=mounted / "src")["mountpoint"] == str(mounted)


def test_what_is_not_mounted(cowfs: Cowfs, mounted: Path) -> None:
    cowfs.cwd = cowfs.top
    assert cowfs.fails("unmount")["code"] == "COWFS_NOT_A_WORKSPACE"
    cowfs.ok("unmount", mounted)
    assert cowfs.fails("unmount", mounted)["code"] == "COWFS_NOT_MOUNTED"


def test_a_holder_is_named(cowfs: Cowfs, mounted: Path) -> None:
    cowfs.cwd = cowfs.top
    with holder(mounted / "readme") as process:
        error = cowfs.fails("unmount", mounted, "--timeout", "0")
        assert (error["code"], error["exit_code"]) == ("COWFS_BUSY", 26)
        assert f"pid {process.pid}: open file {mounted}/readme" in error["message"]
        assert error["details"]["pids"] == [process.pid]
        assert (mounted / "readme").exists()
    assert cowfs.ok("unmount", mounted, "--timeout", "60")["mountpoint"] == str(mounted)


def test_force(cowfs: Cowfs, mounted: Path) -> None:
    cowfs.cwd = cowfs.top
    (mounted / "new").write_text("x")
    with holder(mounted / "readme"):
        cowfs.ok("unmount", mounted, "--force")
        assert cowfs.mounts() == []
    assert (mounted / "new").read_text() == "x"


def test_it_waits_for_a_holder_and_says_so(cowfs: Cowfs, mounted: Path) -> None:
    cowfs.cwd = cowfs.top
    terminal, other_side = pty.openpty()
    try:
        with holder(mounted / "readme") as process:
            command = cowfs.start(
                "unmount", mounted, "--timeout", "60", stderr=other_side, stdout=other_side
            )
            try:
                os.close(other_side)
                shown = b""
                while b"waiting for " not in shown or b"%d" % process.pid not in shown:
                    shown += os.read(terminal, 1024)
                assert process.stdin is not None
                process.stdin.close()
                process.wait()
                while b"unmounted" not in shown:
                    shown += os.read(terminal, 1024)
                assert command.wait(60) == 0
            finally:
                command.kill()
                command.wait()
        assert cowfs.mounts() == []
    finally:
        os.close(terminal)


def test_a_dead_mount_is_cleaned_up_and_applied(cowfs: Cowfs, mounted: Path) -> None:
    cowfs.cwd = cowfs.top
    (mounted / "new").write_text("x")
    status = cowfs.run("-C", mounted, "status", "--json").document
    cowfs.ok("checkpoint", cwd=mounted)
    cowfs.kill(Path(status["store"]))
    result = cowfs.run("unmount", mounted, "--json")
    assert result.code == 0, result
    assert "dead" in result.err
    assert result.document["applied"]["created"] == 1
    assert cowfs.mounts() == []
    assert (mounted / "new").read_text() == "x"


def test_apply_of_a_mounted_workspace(cowfs: Cowfs, project: Path, needs_fuse: None) -> None:
    view = cowfs.top / "view"
    view.mkdir()
    cowfs.ok("mount", project, "--at", view)
    (view / "new").write_text("x")
    assert cowfs.ok("apply", "--dry-run", cwd=view)["created"] == 1
    assert not (project / "new").exists()
    assert "1 created" in cowfs.says("apply", view)
    assert (project / "new").read_text() == "x"
    assert cowfs.ok("unmount", view)["applied"] is None


@pytest.mark.parametrize("how", ["bind mount", "namespace"])
def test_a_mount_that_is_also_elsewhere_is_busy(cowfs: Cowfs, mounted: Path, how: str) -> None:
    """Its daemon would have to go on; who holds it is named, and --force ends it all the same."""
    if how == "bind mount" and os.geteuid() != 0:
        pytest.skip("a bind mount needs root")
    cowfs.cwd = cowfs.top
    place = cowfs.top / "elsewhere"
    place.mkdir()
    with contextlib.ExitStack() as stack:
        if how == "bind mount":
            mount_at(mounted, place)
            stack.callback(umount, place, lazy=True)
        else:
            process = subprocess.Popen(
                elsewhere(mounted, ["sh", "-c", "echo made; read -r end"]),
                cwd="/",
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            stack.callback(process.communicate, b"end\n")
            assert process.stdout is not None
            if process.stdout.readline() != b"made\n":
                pytest.skip("no mount namespace can be made here")
        error = cowfs.fails("unmount", "--timeout", "0", mounted)
        assert error["code"] == "COWFS_BUSY"
        wanted = str(place) if how == "bind mount" else "in its own namespace"
        assert wanted in error["message"]
        assert cowfs.ok("status", cwd=mounted)["mounted"]
        cowfs.ok("unmount", "--force", mounted)
        assert not is_mounted(mounted)
