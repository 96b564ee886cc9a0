"""The parts of the command line that need no workspace."""

from __future__ import annotations

import io
import pwd
import sys
from types import SimpleNamespace

import pytest

from cowfs.api.mounting import default_store
from cowfs.cli import graph, output
from cowfs.cli.progress import ProgressLine
from cowfs.client import places

SECOND = 10**9
NOW = 1_800_000_000 * SECOND


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (-5, "0 s ago"),
        (0, "0 s ago"),
        (59, "59 s ago"),
        (60, "1 min ago"),
        (3599, "59 min ago"),
        (3600, "1 h ago"),
        (2 * 86400 - 1, "47 h ago"),
        (2 * 86400, "2 days ago"),
        (14 * 86400 - 1, "13 days ago"),
    ],
)
def test_ages(seconds: int, said: str) -> None:
    assert output.age(NOW - seconds * SECOND, NOW) == said


def test_an_old_age_is_a_date() -> None:
    assert output.age(NOW - 30 * 86400 * SECOND, NOW).startswith("2026-12-1")


@pytest.mark.parametrize(
    ("count", "said"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (5 << 20, "5.0 MiB"), (3 << 40, "3.0 TiB")],
)
def test_sizes(count: int, said: str) -> None:
    assert output.size(count) == said


def test_control_characters_do_not_reach_the_terminal() -> None:
    assert output.printable("a\nb\x1b[31mc\x7f") == "a\\nb\\x1b[31mc\\x7f"
    assert output.printable("caf\udce9") == "caf\udce9"


def test_counts_leave_out_what_is_zero() -> None:
    assert (
        output.counts({"created": 1200, "modified": 0, "deleted": 1}) == "1,200 created, 1 deleted"
    )
    assert output.counts({"created": 0, "modified": 0, "deleted": 0}) == "no changes"


def drawn(*rows: tuple[str, str | None]) -> list[str]:
    lines = []
    for joins, own in graph.draw([(row, parent, row) for row, parent in rows]):
        lines += [*joins, own]
    return lines


def test_a_straight_line() -> None:
    assert drawn(("c", "b"), ("b", "a"), ("a", None)) == ["c", "b", "a"]


def test_a_branch_joins_above_its_root() -> None:
    assert drawn(("d", "b"), ("c", "b"), ("b", "a"), ("a", None)) == ["d", "| c", "|/", "b", "a"]


def test_three_branches_of_one_state() -> None:
    rows = [("d", "a"), ("c", "a"), ("b", "a"), ("a", None)]
    assert drawn(*rows) == ["d", "| c", "| | b", "|/ /", "|/", "a"]


def test_a_join_over_another_column() -> None:
    rows = [("f", "b"), ("e", "c"), ("d", "b"), ("c", "a"), ("b", "a"), ("a", None)]
    assert drawn(*rows) == ["f", "| e", "| | d", "| c |", "|_|/", "b |", "|/", "a"]


def test_parents_that_are_not_listed_leave_their_columns_open() -> None:
    assert drawn(("d", "b"), ("c", "a")) == ["d", "| c"]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_is_shown_on_a_terminal_and_wiped(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with ProgressLine() as line:
        line.step("applying", 1, 2000, "a\nb")
        line.show("x" * 200, at_once=True)
    shown = terminal.getvalue().split("\r\x1b[K")
    assert shown == ["", "applying 1/2,000 a\\nb", "x" * 78 + "…", ""]


def test_progress_is_silent_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    with ProgressLine() as line:
        line.show("something", at_once=True)
    assert stream.getvalue() == ""


@pytest.mark.parametrize("home", [None, "", "here", "./here", "~"])
@pytest.mark.parametrize("data", [None, "", "data", "../data"])
def test_a_home_that_is_no_absolute_path(
    monkeypatch: pytest.MonkeyPatch, home: str | None, data: str | None
) -> None:
    """XDG Base Directory Specification: "All paths set in these environment variables must be
    absolute. If an implementation encounters a relative path in any of these variables it should
    consider the path invalid and ignore it." Nothing goes below the working directory."""
    for name, value in (("HOME", home), ("XDG_DATA_HOME", data), ("XDG_CONFIG_HOME", data)):
        if value is None:
            monkeypatch.delenv(name, raising=False)
        else:
            monkeypatch.setenv(name, value)
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: SimpleNamespace(pw_dir="/nowhere/ada"))
    assert places.data_directory() == "/nowhere/ada/.local/share/cowfs"
    assert default_store("/w/shop").startswith("/nowhere/ada/.local/share/cowfs/stores/shop-")
    assert places.xdg_directory("XDG_CONFIG_HOME", ".config") == "/nowhere/ada/.config"
    monkeypatch.setenv("XDG_DATA_HOME", "/elsewhere")
    assert places.data_directory() == "/elsewhere/cowfs"


def test_without_any_home(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user without an entry in the password database, in a container."""

    def unknown(uid: int) -> None:
        raise KeyError(uid)

    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    assert places.home_directory() == "/"
