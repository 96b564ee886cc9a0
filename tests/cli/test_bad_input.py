"""Whatever is wrong with a command line: a clear error with its code, and nothing was changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.command import Cowfs
from tests.support.listing import listing

USAGE = ("COWFS_USAGE", 2)
NO_CHECKPOINT = ("COWFS_UNKNOWN_CHECKPOINT", 4)
NO_PATH = ("COWFS_UNKNOWN_PATH", 5)
NO_WORKSPACE = ("COWFS_NOT_A_WORKSPACE", 3)

TABLE: list[tuple[str, tuple[str, int]]] = [
    ("nonsense", USAGE),
    ("mount", USAGE),
    ("mount .. extra", USAGE),
    ("mount .. --store", USAGE),
    ("mount nothing", ("COWFS_NOT_A_DIRECTORY", 20)),
    ("mount readme", ("COWFS_NOT_A_DIRECTORY", 20)),
    ("mount .", ("COWFS_ALREADY_MOUNTED", 24)),
    ("mount src", ("COWFS_NESTED_WORKSPACE", 23)),
    ("mount ../home", ("COWFS_FORBIDDEN_WORKSPACE", 21)),
    ("mount ../free --store ../free/store", ("COWFS_STORE_INSIDE_WORKSPACE", 22)),
    ("mount ../free --at ../home/nothing", ("COWFS_NOT_A_DIRECTORY", 20)),
    ("unmount .. ", NO_WORKSPACE),
    ("unmount --timeout soon", USAGE),
    ("unmount --timeout -1", USAGE),
    ("unmount . extra", USAGE),
    ("apply ..", NO_WORKSPACE),
    ("apply --sure", USAGE),
    ("status extra", USAGE),
    ("status --bad", USAGE),
    ("checkpoint extra", USAGE),
    ("checkpoint -m", USAGE),
    ("checkpoint --label no/../spaces!", ("COWFS_BAD_LABEL", 6)),
    ("checkpoint --label -x", ("COWFS_BAD_LABEL", 6)),
    ("checkpoint --label abcd1234", ("COWFS_BAD_LABEL", 6)),
    ("checkpoint --label ABCD1234", ("COWFS_BAD_LABEL", 6)),
    ("checkpoint --label a//b", ("COWFS_BAD_LABEL", 6)),
    ("checkpoint --label a/../b", ("COWFS_BAD_LABEL", 6)),
    ("checkpoint --label a/.b", ("COWFS_BAD_LABEL", 6)),
    ("checkpoint --label a/", ("COWFS_BAD_LABEL", 6)),
    ("checkpoint --label taken", ("COWFS_LABEL_IN_USE", 6)),
    ("checkpoint --label taken/too", ("COWFS_LABEL_BESIDE", 6)),
    ("log extra", NO_PATH),
    ("log -n many", USAGE),
    ("log -n -1", USAGE),
    ("log -n 99999999999999999999", USAGE),
    ("log --kind nonsense", USAGE),
    ("changes -n 99999999999999999999", USAGE),
    ("find -n 99999999999999999999 readme", USAGE),
    ("find ../home/x", USAGE),
    ("bisect", USAGE),
    ("diff nothing", NO_CHECKPOINT),
    ("diff taken nothing", NO_CHECKPOINT),
    ("diff taken @ nothing", NO_PATH),
    ("diff -- nothing", NO_PATH),
    ("diff taken @ @~1 -- readme", USAGE),
    ("diff ../home", USAGE),
    ("diff --long", USAGE),
    ("diff @~99999", NO_CHECKPOINT),
    ("show", USAGE),
    ("show readme", USAGE),
    ("show taken:", USAGE),
    ("show nothing:readme", NO_CHECKPOINT),
    ("show taken:nothing", NO_PATH),
    ("show taken:readme/x", NO_PATH),
    ("show taken:src", ("COWFS_NOT_A_FILE", 5)),
    ("show taken:../home", USAGE),
    ("show @{1998-01-01}:readme", NO_CHECKPOINT),
    ("restore", USAGE),
    ("restore nothing", NO_CHECKPOINT),
    ("restore nothing --dry-run", NO_CHECKPOINT),
    ("restore @", USAGE),
    ("restore @ --dry-run", USAGE),
    ("restore @{nonsense}", NO_CHECKPOINT),
    ("restore 0000", NO_CHECKPOINT),
    ("restore taken ../home", USAGE),
    ("restore taken nothing", NO_PATH),
    ("restore taken nothing --dry-run", NO_PATH),
    ("restore taken --exclude", USAGE),
    ("undo", ("COWFS_NOTHING_TO_UNDO", 7)),
    ("undo extra", USAGE),
    ("redo", ("COWFS_NOTHING_TO_UNDO", 7)),
    ("redo --all", USAGE),
    ("export", USAGE),
    ("export taken", USAGE),
    ("export nothing ../out", NO_CHECKPOINT),
    ("export taken out", USAGE),
    ("export taken ..", ("COWFS_DESTINATION_EXISTS", 8)),
    ("export taken ../file", ("COWFS_DESTINATION_EXISTS", 8)),
    ("export taken ../file --tar", ("COWFS_DESTINATION_EXISTS", 8)),
    ("export taken ../none/out", ("COWFS_NOT_A_DIRECTORY", 20)),
    ("verify extra", USAGE),
    ("completion", USAGE),
    ("completion tcsh", USAGE),
    ("-C .. status", NO_WORKSPACE),
    ("-C .. checkpoint", NO_WORKSPACE),
    ("-C ../nothing log", NO_WORKSPACE),
    ("-C .. diff", NO_WORKSPACE),
    ("-C .. undo", NO_WORKSPACE),
    ("-C .. verify", NO_WORKSPACE),
    ("-C .. restore x", NO_WORKSPACE),
    ("-C .. show x:y", NO_WORKSPACE),
    ("-C .. export x y", NO_WORKSPACE),
]


@pytest.fixture(scope="module")
def before(shared_cowfs: Cowfs, workspace: Path) -> dict[str, object]:
    """The state that no bad command line changes."""
    (shared_cowfs.top / "free").mkdir()
    (shared_cowfs.top / "file").write_text("x")
    shared_cowfs.ok("checkpoint", "--label", "taken")
    shared_cowfs.in_process = True
    return state(shared_cowfs, workspace)


def state(cowfs: Cowfs, workspace: Path) -> dict[str, object]:
    document = cowfs.ok("log", "-n", "0")
    return {
        "log": document,
        "mounts": cowfs.mounts(),
        "registered": (cowfs.top / "data" / "cowfs" / "workspaces.json").read_text(),
        "tree": listing(workspace),
        "around": sorted(path.name for path in cowfs.top.iterdir()),
    }


@pytest.mark.parametrize(("line", "expected"), TABLE)
def test_bad_input(
    shared_cowfs: Cowfs,
    workspace: Path,
    before: dict[str, object],
    line: str,
    expected: tuple[str, int],
) -> None:
    error = shared_cowfs.fails(*line.split())
    assert (error["code"], error["exit_code"]) == expected, error
    assert error["message"]
    assert error["hint"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["restore", ""], NO_CHECKPOINT),
        (["restore", "", "readme"], NO_CHECKPOINT),
        (["restore", "taken", ""], USAGE),
        (["restore", "taken", "--expect", ""], NO_CHECKPOINT),
        (["diff", ""], NO_CHECKPOINT),
        (["diff", "taken", "@", ""], USAGE),
        (["diff", "--", ""], USAGE),
        (["log", ""], USAGE),
        (["log", "--since", ""], NO_CHECKPOINT),
        (["log", "--until", ""], NO_CHECKPOINT),
        (["log", "--session", ""], ("COWFS_UNKNOWN_SESSION", 71)),
        (["log", "--kind", ""], USAGE),
        (["changes", ""], USAGE),
        (["changes", "--since", ""], NO_CHECKPOINT),
        (["changes", "--by", ""], USAGE),
        (["blame", ""], USAGE),
        (["find", ""], USAGE),
        (["seal", ""], USAGE),
        (["pin", ""], NO_CHECKPOINT),
        (["forget", ""], NO_CHECKPOINT),
        (["export", "", "../out"], NO_CHECKPOINT),
        (["checkpoint", "--label", ""], ("COWFS_BAD_LABEL", 6)),
        (["-C", ".", "checkpoint", "--label", ""], ("COWFS_BAD_LABEL", 6)),
    ],
)
def test_empty_word(
    shared_cowfs: Cowfs,
    workspace: Path,
    before: dict[str, object],
    words: list[str],
    expected: tuple[str, int],
) -> None:
    """A variable of a script that was not set is never taken for everything, or for nothing."""
    error = shared_cowfs.fails(*words)
    assert (error["code"], error["exit_code"]) == expected, error


def test_nothing_was_changed(
    shared_cowfs: Cowfs, workspace: Path, before: dict[str, object]
) -> None:
    assert state(shared_cowfs, workspace) == before
