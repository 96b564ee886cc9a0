"""`cowfs stats` as a command."""

from __future__ import annotations

from pathlib import Path

import pytest

from cowfs.cli.commands import stats as command
from cowfs.service import stats
from tests.cli.command import Cowfs


def test_the_size_of_a_mounted_project(cowfs: Cowfs, mounted: Path) -> None:
    cowfs.in_process = True
    (mounted / "readme").write_text("changed\n" * 100)
    (mounted / "copy").write_text("changed\n" * 100)
    made = cowfs.ok("checkpoint", "-m", "both")["checkpoint"]["id"]
    document = cowfs.ok("stats")
    assert document["checkpoints"] == cowfs.ok("log")["total"] == 2
    found = document["details"]
    assert found["logical"] == 1600 + len("int main;\n")
    assert found["saved"]["dedup"] == 800
    assert found["checkpoints"][0]["name"] == made
    said = cowfs.says("stats")
    assert f"{made[:8]}  both\n" in said
    assert "equal blocks stored once" in said


def test_a_great_store_has_its_summary_at_once(
    cowfs: Cowfs, mounted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The details only when they are asked for."""
    cowfs.in_process = True
    cowfs.ok("checkpoint")
    monkeypatch.setattr(command, "_SMALL", 10)
    monkeypatch.setattr(stats, "details", None)
    assert cowfs.ok("stats")["details"] is None
    assert "cowfs stats --details" in cowfs.says("stats")
    monkeypatch.undo()
    assert cowfs.ok("stats", "--details")["details"]["logical"] > 0


def test_what_removing_checkpoints_frees(cowfs: Cowfs, mounted: Path) -> None:
    """As much as it then does."""
    cowfs.in_process = True
    made = []
    for number in range(6):
        (mounted / "readme").write_text(f"{number}" * 1000)
        made.append(cowfs.ok("checkpoint")["checkpoint"]["id"])
    (mounted / "readme").unlink()
    cowfs.ok("checkpoint")
    some = cowfs.ok("stats", "--free", f"{made[1]}..{made[3]}")["freed"]
    assert some["checkpoints"] == made[1:4]
    assert some["blocks"] == 3
    assert cowfs.ok("stats", "--free", "2")["freed"]["checkpoints"] == made[:2]
    assert "without 2 checkpoints: " in cowfs.says("stats", "--free", "2")
    cowfs.ok("forget", *made[1:4])
    done = cowfs.ok("gc", "--no-policy")
    assert (done["collected"]["blocks"], done["collected"]["bytes"]) == (
        some["blocks"],
        some["bytes"],
    )


def test_what_is_no_range(cowfs: Cowfs, mounted: Path) -> None:
    cowfs.in_process = True
    assert cowfs.fails("stats", "--free", "x")["code"] == "COWFS_USAGE"
    assert cowfs.fails("stats", "--free", "x..y")["code"] == "COWFS_UNKNOWN_CHECKPOINT"
