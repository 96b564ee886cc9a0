"""`cowfs doctor`: each check finds the one thing that is broken, and says what to do.

What others on this machine have mounted is in the answer as well; only what a test made counts.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from cowfs.cli import examining
from cowfs.cli.examining import BAD, NOTE, OK, Finding
from tests.cli.command import Cowfs


def findings(cowfs: Cowfs, path: Path) -> list[dict[str, str]]:
    """What is said about a directory."""
    document = cowfs.run("doctor", "--json").document
    return [f for f in document["findings"] if str(path) in (f["subject"] + " " + f["detail"])]


def worst(cowfs: Cowfs, path: Path) -> dict[str, str]:
    """The one finding that is not all right; the command fails if it is bad."""
    [found] = [f for f in findings(cowfs, path) if f["state"] != OK]
    result = cowfs.run("doctor", "--quiet")
    assert f"{found['subject']}: {found['detail']}" in result.out
    assert f"-> {found['advice']}" in result.out
    if found["state"] == BAD:
        assert result.code == 52
        assert "Traceback" not in result.err
    return found


def test_a_sound_workspace(cowfs: Cowfs, mounted: Path) -> None:
    pid = cowfs.ok("status")["pid"]
    said = findings(cowfs, mounted)
    assert {f["state"] for f in said} <= {OK}
    assert any(f"pid {pid} answers" in f["detail"] for f in said)
    cowfs.cwd = cowfs.top
    cowfs.ok("unmount", mounted)
    assert {f["state"] for f in findings(cowfs, mounted)} == {OK}


def test_a_dead_mount(cowfs: Cowfs, mounted: Path) -> None:
    store = Path(cowfs.ok("status")["store"])
    cowfs.cwd = cowfs.top
    cowfs.kill(store)
    found = worst(cowfs, mounted)
    assert found["state"] == BAD
    assert found["subject"] == "mount"
    assert found["advice"].startswith(f"`cowfs mount {mounted}`")
    cowfs.ok("mount", mounted)
    assert {f["state"] for f in findings(cowfs, mounted)} == {OK}


def test_a_killed_daemon_whose_mount_is_gone(cowfs: Cowfs, mounted: Path) -> None:
    store = Path(cowfs.ok("status")["store"])
    cowfs.cwd = cowfs.top
    cowfs.kill(store)
    cowfs.ok("unmount", "--no-apply", mounted)
    (store / "daemon.pid").write_text("1\n")
    found = worst(cowfs, mounted)
    assert found["state"] == NOTE
    assert "killed" in found["detail"]


@pytest.fixture
def short_patience(cowfs: Cowfs, monkeypatch: pytest.MonkeyPatch) -> None:
    """The doctor waits for nobody for long."""
    cowfs.in_process = True
    monkeypatch.setattr(examining, "_SECONDS", 0.5)


@pytest.mark.usefixtures("short_patience")
def test_a_daemon_that_does_not_answer(cowfs: Cowfs, mounted: Path) -> None:
    """It is stopped: whoever touches the mount would wait, and the doctor does not."""
    pid = cowfs.ok("status")["pid"]
    cowfs.cwd = cowfs.top
    os.kill(pid, signal.SIGSTOP)
    try:
        found = worst(cowfs, mounted)
    finally:
        os.kill(pid, signal.SIGCONT)
    assert found["state"] == BAD
    assert "does not answer" in found["detail"]


@pytest.mark.usefixtures("short_patience")
def test_a_mount_that_does_not_answer(cowfs: Cowfs, mounted: Path) -> None:
    """Nobody listens for it, and it is not dead: the doctor does not wait for it."""
    place = cowfs.ok("status")
    cowfs.cwd = cowfs.top
    socket = Path(place["store"]) / "control.sock"
    os.kill(place["pid"], signal.SIGSTOP)
    try:
        socket.rename(socket.with_name("away"))
        found = findings(cowfs, mounted)
        socket.with_name("away").rename(socket)
    finally:
        os.kill(place["pid"], signal.SIGCONT)
    assert not any("is dead" in row["detail"] for row in found)


def test_a_store_that_is_gone(cowfs: Cowfs, project: Path, needs_fuse: None) -> None:
    store = Path(cowfs.ok("mount", project)["store"])
    cowfs.ok("unmount", project)
    store.rename(cowfs.top / "moved")
    found = worst(cowfs, project)
    assert found["state"] == BAD
    assert "is not there" in found["detail"]


def test_a_directory_that_is_gone(cowfs: Cowfs, project: Path, needs_fuse: None) -> None:
    cowfs.ok("mount", project)
    cowfs.ok("unmount", project)
    project.rename(cowfs.top / "moved")
    found = worst(cowfs, project)
    assert (found["state"], found["detail"]) == (BAD, "the directory is not there")


def test_a_store_that_is_open_to_others(cowfs: Cowfs, mounted: Path) -> None:
    store = Path(cowfs.ok("status")["store"])
    store.chmod(0o755)
    found = worst(cowfs, mounted)
    assert found["state"] == BAD
    assert found["advice"] == f"chmod 700 {store}"


def test_a_store_that_is_damaged(cowfs: Cowfs, project: Path, needs_fuse: None) -> None:
    store = Path(cowfs.ok("mount", project)["store"])
    cowfs.ok("unmount", project)
    (store / "data.mdb").write_bytes(b"no store" * 1000)
    assert worst(cowfs, project)["state"] == BAD


def test_errors_in_the_log(cowfs: Cowfs, mounted: Path) -> None:
    log = Path(cowfs.ok("status")["store"]) / "daemon.log"
    before = log.read_bytes()
    with log.open("ab") as file:
        file.write(b"2026-01-01 00:00:00 ERROR MainThread x: made up\n")
    try:
        found = worst(cowfs, mounted)
    finally:
        log.write_bytes(before)
    assert found["state"] == NOTE
    assert found["detail"].endswith("made up")


def test_the_devices(tmp_path: Path) -> None:
    device = examining._device
    assert device("/dev/null").state == OK
    assert device(str(tmp_path / "none")).detail.startswith("there is no ")
    closed = tmp_path / "closed"
    closed.touch(mode=0)
    if os.geteuid() != 0:
        assert "closed to this user" in device(str(closed)).detail
    assert examining._control(str(tmp_path)).state == (OK if os.geteuid() == 0 else NOTE)


@pytest.mark.parametrize(
    ("release", "state"),
    [("6.18.44-x", OK), ("5.10.0", OK), ("5.9.1", NOTE), ("4.19", NOTE), ("odd", NOTE)],
)
def test_kernels(release: str, state: str) -> None:
    assert examining._kernel(release).state == state


def test_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    assert examining._libraries().state == OK
    monkeypatch.setattr(examining, "_LIBRARIES", ("click", "no_such_library"))
    found = examining._libraries()
    assert (found.state, found.detail) == (BAD, "missing: no_such_library")


def test_a_finding_as_json() -> None:
    found = Finding(BAD, "this", "that", "do it")
    assert found.to_json() == {
        "state": "bad",
        "subject": "this",
        "detail": "that",
        "advice": "do it",
    }
