"""Volatile paths of old checkpoints, end to end: thinned before checkpoints go, and who is told."""

from __future__ import annotations

import errno
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command import Cowfs
from tests.mount.calls import eventually

MIB = 1 << 20
COUNT = 24


@pytest.fixture
def full(cowfs: Cowfs, project: Path, needs_fuse: None) -> tuple[Cowfs, Path, dict[str, str]]:
    """A workspace whose `target` was written anew with each checkpoint, more than its quota
    allows, and the ids of these."""
    cowfs.in_process = True
    cowfs.ok("mount", project, "--quota", "16M")
    cowfs.cwd = project
    cowfs.ok("config", "volatile.paths", "target/")
    (project / "target").mkdir()
    for number in range(COUNT):
        (project / "target" / "out").write_bytes(os.urandom(MIB))
        (project / "source").write_text(f"{number}\n")
        cowfs.ok("checkpoint", "-m", f"c{number}")
        if number == 1:
            cowfs.ok("pin", "@~1")
        eventually(lambda: cowfs.ok("status")["room_bytes"] > 2 * MIB)
    return cowfs, project, {row["message"]: row["id"] for row in rows(cowfs)}


def rows(cowfs: Cowfs) -> list[dict[str, Any]]:
    found = cowfs.ok("log", "-n", "0")["checkpoints"]
    return [row for row in found if row["id"] != "@"]


def test_volatile_paths_go_before_checkpoints(full: tuple[Cowfs, Path, dict[str, str]]) -> None:
    cowfs, project, ids = full
    assert {f"c{number}" for number in range(COUNT)} <= ids.keys(), "no checkpoint went"
    thinned = {row["message"] for row in rows(cowfs) if row["thinned"] == ["target"]}
    assert "c0" in thinned
    assert not thinned & {"c1", f"c{COUNT - 1}", "before the first mount"}
    collected = cowfs.ok("status")["collected"]
    assert (collected["reason"], collected["checkpoints"]) == ("quota", 0)
    assert collected["thinned"] > 0
    assert "to make room" in cowfs.says("status")
    table = cowfs.says("log", "-n", "0", "--all").splitlines()
    assert [line for line in table if line.endswith("[thinned] c0")]
    assert "does not have all contents" in cowfs.says("pin", ids["c0"])
    assert len(cowfs.run("show", f"{ids['c1']}:target/out").raw) == MIB

    old = ids["c0"]
    assert cowfs.says("show", f"{old}:source") == "0\n"
    error = cowfs.fails("show", f"{old}:target/out")
    assert (error["code"], error["exit_code"]) == ("COWFS_THINNED", 55)
    with pytest.raises(OSError, match=os.strerror(errno.ENODATA)):
        (project / ".cowfs" / "checkpoints" / old / "target" / "out").read_bytes()
    assert (project / ".cowfs" / "checkpoints" / old / "target" / "out").stat().st_size == MIB
    assert (project / ".cowfs" / "checkpoints" / old / "source").read_text() == "0\n"

    found = {row["path"]: row["status"] for row in cowfs.ok("diff", old, "@")["changes"]}
    assert found == {"source": "M", "target/out": "M"}
    changed = {row["id"] for row in cowfs.ok("log", "target/out", "-n", "0")["checkpoints"]}
    assert {ids[f"c{number}"] for number in range(COUNT)} <= changed
    problems = cowfs.ok("export", old, cowfs.top / "exported")["problems"]
    assert [(row["path"], row["what"]) for row in problems] == [("target/out", "content")]

    present = (project / "target" / "out").read_bytes()
    for asked in (["--volatile"], ["target"], ["target/out"], ["--volatile", "--dry-run"]):
        assert cowfs.fails("restore", old, *asked)["details"]["path"] == "target/out"
    assert cowfs.ok("restore", old)["left_alone"] == ["target"]
    assert (project / "source").read_text() == "0\n"
    assert (project / "target" / "out").read_bytes() == present
    cowfs.ok("undo")
    assert (project / "source").read_text() == f"{COUNT - 1}\n"

    words = ["--", "sh", "-c", "test $(cat source) -lt 9"]
    skipped = cowfs.run("bisect", "run", "--good", old, *words)
    assert skipped.code == 65
    assert "is skipped (it lost target/out; --thinned tests it without)" in skipped.out
    said = cowfs.says("bisect", "run", "--thinned", "--good", old, *words)
    assert f"the first bad one is {ids['c9'][:8]}" in said

    cowfs.cwd = cowfs.top
    cowfs.ok("unmount", project, "--no-apply")
    cowfs.ok("mount", project, "--quota", "1G")
    cowfs.cwd = project
    subprocess.run(["git", "init", "-q", "."], cwd=project, check=True)
    exported = cowfs.ok("git", "export")
    assert "target/out" in {row["path"] for row in exported["unreadable"]}
    listed = _git(project, "log", "--format=%H", "--grep", old, "cowfs/main")
    assert _git(project, "ls-tree", "-r", "--name-only", listed).split().count("target/out") == 0
    assert cowfs.ok("verify")["problems"] == []


def _git(project: Path, *words: str) -> str:
    done = subprocess.run(["git", *words], cwd=project, check=True, capture_output=True, text=True)
    return done.stdout.strip()
