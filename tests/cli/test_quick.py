"""`checkpoint` and `status` on a live mount: quick, and the same as the full command line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cowfs.cli import quick
from tests.cli.command import Cowfs

pytestmark = pytest.mark.usefixtures("own_processes")

_HEAVY = {
    "argparse",
    "click",
    "contextlib",
    "lmdb",
    "logging",
    "msgspec",
    "pyfuse3",
    "subprocess",
    "trio",
    "typing",
}
_SPY = (
    "import sys; before = set(sys.modules); from cowfs.__main__ import main; code = main();"
    "print(*sorted(set(sys.modules) - before), file=sys.stderr); sys.exit(code)"
)


def imported(cowfs: Cowfs, *arguments: str) -> set[str]:
    """The modules that a command imports, without those that every Python process has."""
    done = subprocess.run(
        [sys.executable, "-S", "-c", "import site; " + "site.main();" + _SPY, *arguments],
        cwd=cowfs.cwd,
        env=cowfs.env,
        capture_output=True,
        text=True,
        check=True,
    )
    return set(done.stderr.split())


@pytest.mark.parametrize(
    "arguments",
    [
        ("checkpoint",),
        ("checkpoint", "-m", "a message", "--json"),
        ("status",),
        ("status", "--json"),
        ("-C", "src", "status"),
    ],
)
def test_the_quick_path_imports_nothing_heavy(
    shared_cowfs: Cowfs, workspace: Path, arguments: tuple[str, ...]
) -> None:
    found = imported(shared_cowfs, *arguments)
    assert "cowfs.cli.quick" in found
    assert not found & _HEAVY
    assert not {name for name in found if name.startswith(("cowfs.service", "cowfs.store"))}


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["log"],
        ["checkpoint", "--help"],
        ["checkpoint", "-m"],
        ["checkpoint", "-mx"],
        ["checkpoint", "extra"],
        ["status", "-m", "x"],
        ["--json", "status"],
        ["-C"],
        ["-C", "x"],
    ],
)
def test_what_is_not_plain_is_left_to_the_full_command_line(arguments: list[str]) -> None:
    assert quick._parse(arguments) is None


def shape(value: Any) -> Any:
    """A JSON value with its fields, but without what they say."""
    if isinstance(value, dict):
        return {key: shape(inner) for key, inner in value.items()}
    return type(value).__name__


@pytest.mark.parametrize("command", ["checkpoint", "status"])
def test_both_paths_answer_alike(shared_cowfs: Cowfs, workspace: Path, command: str) -> None:
    one = shared_cowfs.run(command, "--json")
    two = shared_cowfs.run("--json", command)
    assert one.code == two.code == 0
    assert shape(one.document) == shape(two.document)


def test_an_error_of_the_daemon_is_told_alike(shared_cowfs: Cowfs, workspace: Path) -> None:
    one = shared_cowfs.run("checkpoint", "--label", "no spaces", "--json")
    two = shared_cowfs.run("--json", "checkpoint", "--label", "no spaces")
    assert one.document == two.document
    assert (one.code, one.document["error"]["code"]) == (6, "COWFS_BAD_LABEL")


def test_a_message_that_is_not_utf8(shared_cowfs: Cowfs, workspace: Path) -> None:
    for arguments in (("checkpoint", "-m", "a\udcffb"), ("--json", "checkpoint", "-m", "a\udcffb")):
        assert shared_cowfs.run(*arguments).code == 0
    rows = shared_cowfs.ok("log", "-n", "2")["checkpoints"]
    assert [row["message"] for row in rows] == ["a\ufffdb"] * 2
