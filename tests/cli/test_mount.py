"""`cowfs mount`, and finding the workspace afterwards."""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import subprocess
from pathlib import Path

import pytest

from cowfs.api.mounting import Plan, check
from cowfs.client import places
from cowfs.errors import ForbiddenWorkspaceError
from tests.cli.command import Cowfs, kill
from tests.cli.conftest import make_project
from tests.mount.calls import eventually

pytestmark = pytest.mark.usefixtures("needs_fuse", "own_processes")


def is_mounted(path: Path) -> bool:
    return any(at == str(path) for at, _ in places.mounts())


def test_the_answer_of_mount(cowfs: Cowfs, project: Path) -> None:
    answer = cowfs.ok("mount", project)
    store = Path(answer["store"])
    assert answer["workspace"] == answer["mountpoint"] == str(project)
    assert answer["pid"] == cowfs.pid(store)
    assert 0 < answer["seconds"] < 60
    assert answer["cleaned"] is False
    assert store.parent == cowfs.top / "data" / "cowfs" / "stores"
    assert store.name.startswith("project-")
    assert stat.S_IMODE(store.stat().st_mode) == 0o700
    assert is_mounted(project)
    assert (project / "readme").read_text() == "one\ntwo\n"


def test_the_daemon_is_detached(cowfs: Cowfs, project: Path) -> None:
    pid = cowfs.ok("mount", project)["pid"]
    assert os.getsid(pid) == pid
    assert os.readlink(f"/proc/{pid}/cwd") == "/"
    assert os.readlink(f"/proc/{pid}/fd/0") == "/dev/null"


def test_a_shell_below_the_mount_is_told(cowfs: Cowfs, project: Path) -> None:
    result = cowfs.run("mount", ".", cwd=project)
    assert result.code == 0
    assert 'cd "$PWD"' in result.err
    assert result.out.startswith(f"mounted {project} in ")


def test_a_store_of_ones_own_choice_is_remembered(cowfs: Cowfs, project: Path) -> None:
    store = cowfs.top / "elsewhere"
    assert cowfs.ok("mount", "project", "--store", "elsewhere")["store"] == str(store)
    cowfs.ok("unmount", project)
    assert cowfs.ok("mount", project)["store"] == str(store)


def test_another_store_than_before_is_noted(cowfs: Cowfs, project: Path) -> None:
    store = cowfs.ok("mount", project)["store"]
    cowfs.ok("unmount", project)
    result = cowfs.run("mount", project, "--store", "another")
    assert result.code == 0
    assert f"the history so far stays in {store}" in result.err


def test_names_that_are_hard_to_carry(cowfs: Cowfs) -> None:
    project = make_project(cowfs.top / "pro\udcffject, of\\a \u4e16")
    store = cowfs.top / "st,o\\re x"
    answer = cowfs.ok("mount", project)
    assert answer["workspace"] == str(project)
    assert answer["store"].isascii()
    cowfs.ok("unmount", project)
    assert cowfs.ok("mount", project, "--store", store)["store"] == str(store)
    (project / "new").write_text("x")
    status = cowfs.ok("status", cwd=project / "src")
    assert (status["workspace"], status["store"]) == (str(project), str(store))
    assert status["changes"]["created"] == 1
    assert cowfs.ok("unmount", project)["applied"]["created"] == 1


def test_relative_paths_start_at_the_directory_of_option_c(cowfs: Cowfs, project: Path) -> None:
    answer = cowfs.run("-C", project, "mount", "src", "--store", "../store", "--json").document
    assert answer["workspace"] == str(project / "src")
    assert answer["store"] == str(cowfs.top / "store")


def test_a_mount_elsewhere(cowfs: Cowfs, project: Path) -> None:
    view = cowfs.top / "view"
    view.mkdir()
    answer = cowfs.ok("mount", project, "--at", view)
    assert (answer["workspace"], answer["mountpoint"]) == (str(project), str(view))
    (view / "new").write_text("x")
    assert not (project / "new").exists()
    for place in (view, view / "src", project, project / "src"):
        status = cowfs.ok("status", cwd=place)
        assert status["mounted"] is True
        assert (status["workspace"], status["mountpoint"]) == (str(project), str(view))
        assert status["changes"] == {"created": 1, "modified": 0, "deleted": 0}
    assert cowfs.ok("apply", cwd=project)["created"] == 1
    assert (project / "new").read_text() == "x"


def test_mounting_again_after_the_daemon_was_killed(cowfs: Cowfs, project: Path) -> None:
    store = Path(cowfs.ok("mount", project)["store"])
    (project / "kept").write_text("x")
    cowfs.ok("checkpoint", cwd=project)
    cowfs.kill(store)

    dead = cowfs.run("-C", project, "status", "--json").document
    assert (dead["mounted"], dead["health"]["state"]) == (False, "dead")
    assert dead["health"]["problems"][0]["kind"] == "daemon"
    assert "cowfs mount" in cowfs.says("-C", project, "status")
    for command in ("checkpoint", "diff", "undo", "apply"):
        assert cowfs.fails("-C", project, command)["code"] == "COWFS_DAEMON_UNREACHABLE"
    assert "before the first mount" in cowfs.says("-C", project, "log")

    result = cowfs.run("mount", project, "--json")
    assert result.document["cleaned"] is True
    assert "dead mount" in result.err
    assert (project / "kept").read_text() == "x"
    assert sum(at == project for at, _ in cowfs.mounts()) == 1


def test_a_foreground_daemon_ends_with_a_signal(cowfs: Cowfs, project: Path) -> None:
    process = cowfs.start(
        "mount",
        project,
        "--foreground",
        "--json",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert b'"ok": true' in line
        assert is_mounted(project)
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
        assert not is_mounted(project)
    finally:
        process.kill()
        process.communicate()


def test_a_daemon_that_dies_is_told_with_its_last_words(cowfs: Cowfs, project: Path) -> None:
    broken = cowfs.top / "broken"
    broken.mkdir()
    (broken / "pyfuse3.py").write_text("raise RuntimeError('no such thing here')\n")
    cowfs.env["PYTHONPATH"] = f"{broken}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    error = cowfs.fails("mount", project)
    assert (error["code"], error["exit_code"]) == ("COWFS_MOUNT_FAILED", 28)
    assert "exit code 1" in error["message"]
    assert "no such thing here" in error["message"]
    log = Path(error["details"]["log"])
    assert "no such thing here" in log.read_text()
    assert not is_mounted(project)


# -- refusals -------------------------------------------------------------------------------


def refused(cowfs: Cowfs, *arguments: str | Path) -> str:
    """The code of the error; nothing was mounted and no store made."""
    before = cowfs.mounts()
    stores = sorted(cowfs.top.glob("data/cowfs/stores/*"))
    cowfs.in_process = True
    error = cowfs.fails("mount", *arguments)
    cowfs.in_process = False
    assert cowfs.mounts() == before
    assert sorted(cowfs.top.glob("data/cowfs/stores/*")) == stores
    return str(error["code"])


def test_home_and_what_is_above_it(cowfs: Cowfs) -> None:
    assert refused(cowfs, cowfs.home) == "COWFS_FORBIDDEN_WORKSPACE"
    assert refused(cowfs, cowfs.top) == "COWFS_FORBIDDEN_WORKSPACE"


def test_home_with_force(cowfs: Cowfs) -> None:
    assert cowfs.ok("mount", cowfs.home, "--force")["workspace"] == str(cowfs.home)


def test_the_root_directory() -> None:
    with pytest.raises(ForbiddenWorkspaceError):
        check(Plan("/", "/", "/nonexistent/store", False), force=False)


def test_what_is_no_directory(cowfs: Cowfs, project: Path) -> None:
    assert refused(cowfs, project / "readme") == "COWFS_NOT_A_DIRECTORY"
    assert refused(cowfs, project / "readme" / "x") == "COWFS_NOT_A_DIRECTORY"
    assert refused(cowfs, cowfs.top / "nothing") == "COWFS_NOT_A_DIRECTORY"
    assert refused(cowfs, project, "--at", cowfs.top / "nothing") == "COWFS_NOT_A_DIRECTORY"


def test_a_store_inside_the_workspace(cowfs: Cowfs, project: Path) -> None:
    for store in (project, project / ".cowfs-store", project / "src" / ".." / "store"):
        assert refused(cowfs, project, "--store", store) == "COWFS_STORE_INSIDE_WORKSPACE"
    assert sorted(os.listdir(project)) == ["readme", "src"]


def test_a_workspace_inside_its_store(cowfs: Cowfs, project: Path) -> None:
    code = refused(cowfs, project / "src", "--store", project)
    assert code == "COWFS_FORBIDDEN_WORKSPACE"
    assert stat.S_IMODE(project.stat().st_mode) != 0o700


def test_a_directory_with_other_things_as_store(cowfs: Cowfs, project: Path) -> None:
    for store in (cowfs.top / "other", project / "readme"):
        if not store.exists():
            store.mkdir()
            (store / "file").write_text("x")
        mode = stat.S_IMODE(store.stat().st_mode)
        assert refused(cowfs, project / "src", "--store", store) == "COWFS_DESTINATION_EXISTS"
        assert stat.S_IMODE(store.stat().st_mode) == mode


def test_a_mountpoint_that_is_not_empty(cowfs: Cowfs, project: Path) -> None:
    assert refused(cowfs, project / "src", "--at", project) == "COWFS_USAGE"


def test_a_mountpoint_inside_the_directory(cowfs: Cowfs, project: Path) -> None:
    (project / "view").mkdir()
    assert refused(cowfs, project, "--at", project / "view") == "COWFS_NESTED_WORKSPACE"


def test_mounted_already(cowfs: Cowfs, mounted: Path) -> None:
    assert refused(cowfs, mounted) == "COWFS_ALREADY_MOUNTED"
    assert refused(cowfs, cowfs.top / "project") == "COWFS_ALREADY_MOUNTED"
    (cowfs.top / "view").mkdir()
    code = refused(cowfs, mounted, "--at", cowfs.top / "view")
    assert code == "COWFS_ALREADY_MOUNTED"


def test_nested_workspaces(cowfs: Cowfs) -> None:
    inner = make_project(cowfs.top / "outer" / "middle" / "inner")
    middle, outer = inner.parent, inner.parent.parent
    cowfs.ok("mount", middle)
    assert refused(cowfs, inner) == "COWFS_NESTED_WORKSPACE"
    assert refused(cowfs, outer) == "COWFS_NESTED_WORKSPACE"
    cowfs.ok("unmount", middle)
    assert cowfs.ok("mount", outer)["mountpoint"] == str(outer)


def test_nested_in_the_directory_of_a_mount_elsewhere(cowfs: Cowfs, project: Path) -> None:
    (cowfs.top / "view").mkdir()
    (cowfs.top / "view2").mkdir()
    cowfs.ok("mount", project, "--at", cowfs.top / "view")
    assert refused(cowfs, project / "src") == "COWFS_NESTED_WORKSPACE"
    code = refused(cowfs, project / "src", "--at", cowfs.top / "view2")
    assert code == "COWFS_NESTED_WORKSPACE"
    assert refused(cowfs, cowfs.top / "view" / "src") == "COWFS_NESTED_WORKSPACE"


def test_a_store_of_another_workspace(cowfs: Cowfs, project: Path) -> None:
    store = cowfs.top / "store"
    cowfs.ok("mount", project, "--store", store)
    assert refused(cowfs, project / ".." / "home", "--force", "--store", store) == (
        "COWFS_STORE_FOREIGN"
    )
    cowfs.ok("unmount", project)
    (cowfs.top / "another").mkdir()
    assert refused(cowfs, cowfs.top / "another", "--store", store) == "COWFS_STORE_FOREIGN"


def test_a_store_that_another_process_writes(cowfs: Cowfs, project: Path) -> None:
    store = Path(cowfs.ok("mount", project)["store"])
    os.kill(cowfs.pid(store), 0)
    copy = make_project(cowfs.top / "copy")
    cowfs.ok("unmount", project)
    from cowfs.store.env import lock_owner

    owner = lock_owner(store)
    try:
        assert cowfs.fails("mount", project)["code"] == "COWFS_STORE_LOCKED"
        assert cowfs.fails("-C", project, "checkpoint")["code"] == "COWFS_STORE_LOCKED"
    finally:
        os.close(owner)
    assert cowfs.ok("mount", copy)["workspace"] == str(copy)


def test_a_newer_store_is_refused_and_left_alone(cowfs: Cowfs, project: Path) -> None:
    store = Path(cowfs.ok("mount", project)["store"])
    cowfs.ok("unmount", project)
    import msgspec

    from cowfs.format import records, version
    from cowfs.store.env import open_store

    opened = open_store(store, writable=True)
    with opened.begin(write=True) as txn:
        record = opened.format()
        newer = version.sealed(msgspec.structs.replace(record, version=99))
        txn.put(b"format", records.encode(newer), db=opened.tables["meta"])
    opened.close()
    assert cowfs.fails("mount", project)["code"] == "COWFS_STORE_FORMAT"
    assert cowfs.fails("-C", project, "log")["code"] == "COWFS_STORE_FORMAT"


def test_a_store_that_is_gone(cowfs: Cowfs, project: Path) -> None:
    store = Path(cowfs.ok("mount", project)["store"])
    cowfs.ok("unmount", project)
    store.rename(cowfs.top / "moved")
    for command in ("status", "checkpoint", "log"):
        assert cowfs.fails("-C", project, command)["code"] == "COWFS_STORE_MISSING"
    assert not store.exists()


def test_a_signal_ends_the_daemon_in_order(cowfs: Cowfs, mounted: Path) -> None:
    store = Path(cowfs.ok("status")["store"])
    (mounted / "file").write_text("x")
    kill(cowfs.pid(store), signal.SIGTERM)
    assert not is_mounted(mounted)
    assert not (store / "daemon.pid").exists()
    cowfs.cwd = cowfs.top
    cowfs.ok("mount", mounted)
    assert (mounted / "file").read_text() == "x"


def test_a_killed_daemon_is_started_again(cowfs: Cowfs, project: Path) -> None:
    """With --restart; what was committed is there, and the mount answers by itself. A daemon that
    is killed again and again is left alone after the fifth time, its mount dead."""
    mounted = cowfs.ok("mount", project, "--restart")
    store, pids = Path(mounted["store"]), [mounted["pid"]]
    (project / "file").write_text("kept")
    cowfs.ok("checkpoint", cwd=project)
    for _ in range(5):
        kill(pids[-1], signal.SIGKILL)
        eventually(lambda: cowfs.pid(store) not in pids and _answers(project))
        pids.append(cowfs.pid(store))
        assert (project / "file").read_text() == "kept"
        assert cowfs.ok("status", cwd=project)["pid"] == pids[-1]
    kill(pids[-1], signal.SIGKILL)
    eventually(lambda: not _standing_by(store))
    assert not _answers(project)
    assert is_mounted(project)
    assert cowfs.ok("mount", project)["cleaned"]
    assert (project / "file").read_text() == "kept"


def _answers(directory: Path) -> bool:
    try:
        os.listdir(directory)
    except OSError:
        return False
    return True


def _standing_by(store: Path) -> bool:
    """Whether a process of this store's daemon is there."""
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):
                if os.fsencode(store) in Path(f"/proc/{entry}/cmdline").read_bytes():
                    return True
    return False
