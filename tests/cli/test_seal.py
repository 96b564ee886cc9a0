"""`cowfs seal`, and what somebody changed in the directory from outside, end to end."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from tests.cli.command import Cowfs
from tests.mount.calls import eventually


def start(cowfs: Cowfs) -> str:
    """Id of the checkpoint before the first mount."""
    found = cowfs.ok("log", "-n", "0")["checkpoints"]
    return str(found[-1]["id"])


def external(cowfs: Cowfs) -> list[str]:
    """Messages of the checkpoints of outside changes, newest first."""
    rows = cowfs.ok("log", "-n", "0")["checkpoints"]
    return [row["message"] for row in rows if row["kind"] == "external"]


def left(cowfs: Cowfs, project: Path) -> int:
    """How many files are not sealed, once all are known; else 0."""
    status = cowfs.ok("status", cwd=project)
    return int(status["sealing"]["unsealed"]) if status["import"]["complete"] else 0


@pytest.mark.parametrize("when", ["mounted", "unmounted"])
def test_nothing_outside_can_damage_the_history(
    cowfs: Cowfs, project: Path, when: str, needs_fuse: None
) -> None:
    (project / "big").write_bytes(bytes(range(256)) * 4096)
    cowfs.cwd = project
    cowfs.ok("mount", project)
    if when == "unmounted":
        cowfs.ok("unmount", project, cwd=cowfs.top)
    sealed = cowfs.ok("seal", project, cwd=cowfs.top)
    assert (sealed["files"], sealed["unsealed"], sealed["complete"]) == (3, 0, True)
    assert cowfs.ok("status")["sealing"] == {"unsealed": 0, "lost": 0}
    if when == "mounted":
        cowfs.ok("unmount", project, cwd=cowfs.top)
    shutil.rmtree(project / "src")
    (project / "big").unlink()
    (project / "readme").write_text("something else\n")
    assert cowfs.says("show", f"{start(cowfs)}:readme", cwd=project) == "one\ntwo\n"
    cowfs.ok("mount", project)
    assert sorted(os.listdir(project)) == ["readme"]
    first = start(cowfs)
    cowfs.ok("restore", first)
    assert (project / "big").read_bytes() == bytes(range(256)) * 4096
    assert (project / "src" / "main.c").read_text() == "int main;\n"
    assert (project / "readme").read_text() == "one\ntwo\n"
    cowfs.ok("undo")
    assert sorted(os.listdir(project)) == ["readme"]
    cowfs.cwd = cowfs.top


def test_changes_from_outside_in_the_log(cowfs: Cowfs, project: Path, needs_fuse: None) -> None:
    """Work here, then changes outside, then work here: three states to go back to."""
    cowfs.ok("mount", project)
    cowfs.ok("seal", project)
    (project / "here").write_text("1")
    cowfs.ok("unmount", project, "--no-apply")
    (project / "readme").write_text("outside\n")
    (project / "made outside").write_text("2")
    cowfs.ok("mount", project)
    cowfs.cwd = project
    assert (project / "readme").read_text() == "outside\n"
    (project / "here").write_text("3")
    assert external(cowfs) == ["external changes", "before external changes"]
    rows = {row["message"]: row for row in cowfs.ok("log")["checkpoints"]}
    assert rows["external changes"]["counts"] == {"created": 1, "modified": 1, "deleted": 0}
    kinds = {row["kind"] for row in cowfs.ok("status")["health"]["problems"]}
    assert kinds == {"external"}
    cowfs.ok("restore", rows["before external changes"]["id"])
    assert sorted(os.listdir(project)) == ["here", "readme", "src"]
    assert (project / "readme").read_text() == "one\ntwo\n"
    assert (project / "here").read_text() == "1"
    cowfs.ok("undo")
    assert (project / "here").read_text() == "3"
    assert (project / "made outside").read_text() == "2"
    cowfs.cwd = cowfs.top


def test_they_are_sealed_when_all_was_seen(cowfs: Cowfs, project: Path, needs_fuse: None) -> None:
    """Without anybody who looks or writes."""
    cowfs.ok("mount", project)
    cowfs.ok("seal", project)
    cowfs.ok("unmount", project)
    (project / "src" / "main.c").write_text("int other;\n")
    cowfs.ok("mount", project)
    cowfs.cwd = project
    eventually(lambda: external(cowfs) == ["external changes"])
    last = cowfs.ok("status")["last_checkpoint"]
    assert (last["kind"], last["message"]) == ("external", "external changes")
    cowfs.cwd = cowfs.top


def test_paths(cowfs: Cowfs, mounted: Path) -> None:
    assert cowfs.ok("seal", "src", "--rate", "1000")["files"] == 1
    assert cowfs.ok("status")["sealing"]["unsealed"] == 1
    assert "1 file is only in the directory" in cowfs.says("status")
    error = cowfs.fails("seal", "missing")
    assert error["code"] == "COWFS_UNKNOWN_PATH"
    assert cowfs.ok("seal", mounted / "readme", "--idle", cwd=mounted / "src")["files"] == 1
    assert "sealed      everything" in cowfs.says("status")
    assert "nothing outside can damage" in cowfs.says("seal")


def test_a_file_that_nobody_can_read(cowfs: Cowfs, project: Path, needs_fuse: None) -> None:
    if os.geteuid() == 0:
        pytest.skip("root can read everything")
    (project / "readme").chmod(0)
    cowfs.ok("mount", project)
    cowfs.cwd = project
    result = cowfs.run("seal", "--json")
    document = json.loads(result.out)
    assert document["error"]["code"] == "COWFS_SEAL_INCOMPLETE"
    assert [row["path"] for row in document["problems"]] == ["readme"]
    assert document["files"] == 1
    cowfs.cwd = cowfs.top


def test_interrupted_and_continued(cowfs: Cowfs, project: Path, needs_fuse: None) -> None:
    for number in range(50):
        (project / f"f{number}").write_bytes(os.urandom(100_000))
    cowfs.ok("mount", project)
    cowfs.cwd = project
    eventually(lambda: left(cowfs, project) == 52)  # the walk has found them all
    with cowfs.start("seal", "--rate", "0.1", stderr=subprocess.PIPE) as command:
        eventually(lambda: 0 < left(cowfs, project) < 52)
        command.send_signal(signal.SIGINT)
        assert command.wait(30) == 130
    sealed = cowfs.ok("seal")
    assert sealed["complete"]
    assert 0 < sealed["files"] < 52
    cowfs.cwd = cowfs.top


def test_in_the_background(cowfs: Cowfs, project: Path, needs_fuse: None) -> None:
    cowfs.ok("mount", project, "--seal")
    cowfs.cwd = project
    eventually(lambda: cowfs.ok("status")["import"]["complete"])
    eventually(lambda: cowfs.ok("status")["sealing"] == {"unsealed": 0, "lost": 0})
    cowfs.cwd = cowfs.top


def test_unmounting_ends_it(cowfs: Cowfs, project: Path, needs_fuse: None) -> None:
    (project / "the rest").write_bytes(os.urandom(3_000_000))
    cowfs.ok("mount", project)
    eventually(lambda: left(cowfs, project) == 3)
    with cowfs.start("seal", project, "--rate", "0.1", stdout=subprocess.DEVNULL) as command:
        eventually(lambda: 0 < left(cowfs, project) < 3)  # "readme" comes first
        cowfs.ok("unmount", project)
        assert command.wait(30) == 59
    assert cowfs.ok("seal", project)["complete"]
