"""`cowfs service`: the unit, and readiness. There is no systemd to run it in the tests."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from cowfs.cli.commands.service import unit
from tests.cli.command import Cowfs
from tests.cli.test_mount import is_mounted

pytestmark = pytest.mark.usefixtures("own_processes")


def test_the_unit(cowfs: Cowfs, project: Path) -> None:
    document = cowfs.ok("service", project)
    text = document["text"]
    assert f'mount "{project}" --store "' in text
    assert text.count("\nType=notify\n") == text.count("\nRestart=on-failure\n") == 1
    assert document["unit"].endswith(".service")
    assert not os.path.exists(document["unit"])
    assert cowfs.run("service", project).out == text


def test_odd_names_are_quoted() -> None:
    """systemd.syntax(7): a word in double quotes, C escapes; systemd.service(5): $$ and %%."""
    [line] = [n for n in unit('/a "b"\\c/$d 100%', "/s").split("\n") if n.startswith("ExecStart=")]
    assert '"/a \\"b\\"\\\\c/$$d 100%%"' in line


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd-analyze is not installed")
def test_systemd_accepts_the_unit(cowfs: Cowfs, project: Path) -> None:
    document = cowfs.ok("service", project)
    path = cowfs.top / os.path.basename(document["unit"])
    path.write_text(document["text"])
    env = {**os.environ, "XDG_RUNTIME_DIR": str(cowfs.top)}
    done = subprocess.run(
        ["systemd-analyze", "--user", "verify", path],
        capture_output=True,
        text=True,
        env=env,
        check=False,
    )
    assert path.name not in done.stderr
    assert done.returncode == 0, done.stderr


def test_no_systemd(cowfs: Cowfs, project: Path) -> None:
    cowfs.env["PATH"] = str(cowfs.top)
    error = cowfs.fails("service", project, "--install")
    assert error["code"] == "COWFS_SERVICE_UNAVAILABLE"
    assert "cowfs mount DIR --restart" in error["hint"]
    assert cowfs.fails("service", project / "none")["code"] == "COWFS_NOT_A_DIRECTORY"
    both = cowfs.fails("service", project, "--install", "--remove")
    assert both["code"] == "COWFS_USAGE"


def test_the_manager_is_told_when_the_mount_answers(
    cowfs: Cowfs, project: Path, needs_fuse: None
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(cowfs.top / "notify"))
        manager.settimeout(60)
        cowfs.env["NOTIFY_SOCKET"] = str(cowfs.top / "notify")
        process = cowfs.start("mount", project, "--foreground", stdout=subprocess.DEVNULL)
        try:
            assert manager.recv(100) == b"READY=1"
            assert is_mounted(project)
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
            assert not is_mounted(project)
        finally:
            process.kill()
            process.wait()
