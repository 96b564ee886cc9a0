"""Commands that are started outside of the workspace that their paths lead into."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command import Cowfs
from tests.cli.conftest import make_project


def paths(document: dict[str, Any], member: str) -> list[str]:
    return [row["path"] for row in document[member]]


@pytest.fixture
def changed(cowfs: Cowfs, mounted: Path) -> str:
    """A checkpoint after which `readme` was changed; commands run above the workspace."""
    checkpoint = str(cowfs.ok("checkpoint", "--label", "a/b")["checkpoint"]["id"])
    (mounted / "readme").write_text("changed\n")
    os.symlink("/", mounted / "out")
    cowfs.cwd = mounted.parent
    return checkpoint


@pytest.mark.parametrize("relative", [False, True])
def test_paths_say_which_workspace(
    cowfs: Cowfs, mounted: Path, changed: str, relative: bool
) -> None:
    readme = "project/readme" if relative else str(mounted / "readme")
    old = cowfs.run("show", f"@~1:{readme}").raw
    assert old != b"changed\n"
    assert cowfs.ok("blame", readme)["checkpoint"] == "@"
    assert cowfs.ok("log", readme)["head_events"] != []
    assert len(cowfs.ok("changes", readme)["changes"]) == 1
    assert paths(cowfs.ok("find", readme if not relative else f"./{readme}"), "found") == ["readme"]
    for words in ((readme,), (changed, readme), ("a/b", "@", "--", readme), ("--", readme)):
        assert paths(cowfs.ok("diff", *words), "changes") == ["readme"]
    assert cowfs.ok("seal", readme)["complete"]
    cowfs.ok("restore", changed, readme)
    assert (mounted / "readme").read_bytes() == old


def test_the_top_links_and_what_is_gone(cowfs: Cowfs, mounted: Path, changed: str) -> None:
    """A symbolic link in last place is meant itself, wherever it leads."""
    assert paths(cowfs.ok("diff", mounted), "changes") == ["out", "readme"]
    assert paths(cowfs.ok("diff", mounted / "out"), "changes") == ["out"]
    (mounted / "readme").unlink()
    assert paths(cowfs.ok("diff", mounted / "readme"), "changes") == ["readme"]


def test_paths_in_two_workspaces(cowfs: Cowfs, mounted: Path, changed: str) -> None:
    other = make_project(cowfs.top / "other")
    cowfs.ok("mount", other)
    (other / "readme").write_text("the other\n")
    for cwd in (cowfs.top, other, mounted):
        error = cowfs.fails("log", mounted / "readme", other / "readme", cwd=cwd)
        assert error["code"] == "COWFS_USAGE"
        assert str(other) in error["message"]
        assert str(mounted) in error["message"]
    document = cowfs.ok("diff", other / "readme", cwd=mounted)
    assert paths(document, "changes") == ["readme"]
    assert document["a"] != changed
    assert cowfs.run("show", f"@:{other}/readme", cwd=mounted).raw == b"the other\n"


def test_paths_in_no_workspace(cowfs: Cowfs, mounted: Path, changed: str) -> None:
    """The advice is about the path's directory, not where the command was started."""
    for words in (("blame",), ("log",), ("changes",), ("find",), ("diff",), ("seal",)):
        error = cowfs.fails(*words, cowfs.home / "file", cwd=Path("/"))
        assert error["code"] == "COWFS_NOT_A_WORKSPACE"
        assert f"cowfs mount {cowfs.home}`" in error["hint"]
    assert cowfs.fails("diff", "a/b")["code"] == "COWFS_NOT_A_WORKSPACE"
    assert cowfs.fails("log", cowfs.home, mounted)["code"] == "COWFS_USAGE"
    assert cowfs.fails("log", cowfs.home, cwd=mounted)["code"] == "COWFS_USAGE"
