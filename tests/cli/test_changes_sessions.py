"""Which session did it, on a real mount: `cowfs changes --by SESSION` and `--outside`.

Things are made by mkdir(1): one request, so one story wherever a transaction group ends.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

from tests.cli.agent_shell import SESSION, Agent, going_on
from tests.cli.command import Cowfs


def told(cowfs: Cowfs, *arguments: str | Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = cowfs.ok("changes", *arguments)["changes"]
    return found


def names(stories: list[dict[str, Any]]) -> list[str]:
    return [Path(row["path"]).name for story in stories for row in story["paths"]]


def test_a_session_and_others(shared_cowfs: Cowfs, place: Path) -> None:
    with going_on(shared_cowfs, place) as agent:
        agent.runs("bash -c 'mkdir one; true'")
        before = shared_cowfs.ok("status")["outside"]
        subprocess.run(["mkdir", "two"], cwd=place, check=True)
        for who in (SESSION, SESSION[:8]):
            assert names(told(shared_cowfs, "--by", who, place)) == ["one"]
        (story,) = told(shared_cowfs, "--outside", place)
        assert (names([story]), story["outside"]) == (["two"], True)
        assert shared_cowfs.ok("status")["outside"] == before + 1
        many = "1 change" if not before else f"{before + 1} changes"
        assert f"{many} by others" in shared_cowfs.says("status")
    (place / "three").mkdir()
    assert told(shared_cowfs, place)[-1]["outside"] is False
    lines = shared_cowfs.says("changes", place).splitlines()
    one, two = (next(line for line in lines if f"/{name}" in line) for name in ("one", "two"))
    assert "bash `mkdir one` in session 5f0c12ab made" in one
    assert "[outside]" in two
    assert "[outside]" not in one + lines[-1]
    assert told(shared_cowfs, "--by", SESSION, "--outside", place) == []


def test_the_call_of_a_tool(shared_cowfs: Cowfs, place: Path) -> None:
    with going_on(shared_cowfs, place) as agent:
        agent.tells("tool-start", tool="Bash", tool_id="t1", tool_text="mkdir one")
        agent.runs("bash -c 'mkdir one; true'")
        agent.tells("tool-end", tool="Bash", tool_id="t1")
        agent.runs("bash -c 'mkdir two; true'")
    one, two = (s["process"] for s in told(shared_cowfs, "--by", SESSION, place))
    assert (one["session"], one["tool"]) == (SESSION, "t1")
    assert (two["session"], two["tool"]) == (SESSION, "")
    assert names(told(shared_cowfs, "--by", "t1", place)) == ["one"]


def test_an_edit_of_the_agent_itself(shared_cowfs: Cowfs, place: Path) -> None:
    with going_on(shared_cowfs, place) as agent:
        agent.runs("echo > before")
        agent.tells("subagent-start", subagent="a1", subagent_kind="editor")
        edit = {"subagent": "a1", "tool": "Edit", "tool_id": "e1", "tool_path": str(place / "f")}
        agent.tells("tool-start", **edit)
        agent.runs("echo > f")
        agent.tells("tool-end", **edit)
        agent.runs("echo > after")
    found = {names([s])[0]: s["process"] for s in told(shared_cowfs, "--by", SESSION, place)}
    assert (found["f"]["session"], found["f"]["tool"]) == (f"{SESSION}/a1", "e1")
    for name in ("before", "after"):
        assert (found[name]["session"], found[name]["tool"]) == (SESSION, "")


def test_sub_agents_side_by_side(shared_cowfs: Cowfs, place: Path) -> None:
    with going_on(shared_cowfs, place) as agent:
        for number in (1, 2):
            agent.tells("subagent-start", subagent=f"a{number}", subagent_kind="tester")
            agent.tells(
                "tool-start",
                subagent=f"a{number}",
                tool="Bash",
                tool_id=f"t{number}",
                tool_text=f"mkdir f{number}",
            )
        agent.runs("bash -c 'mkdir f1; true' & bash -c 'mkdir f2; true' & wait")
        for number in (1, 2):
            agent.tells("subagent-end", subagent=f"a{number}")
    for number in (1, 2):
        (story,) = told(shared_cowfs, "--by", f"{SESSION}/a{number}", place)
        assert names([story]) == [f"f{number}"]
        assert story["process"]["session"] == f"{SESSION}/a{number}"
        assert story["process"]["tool"] == f"t{number}"
    assert sorted(names(told(shared_cowfs, "--by", SESSION, place))) == ["f1", "f2"]


def test_what_is_put_into_the_background(shared_cowfs: Cowfs, place: Path) -> None:
    """It loses its parents, and still belongs to the session."""
    with going_on(shared_cowfs, place) as agent:
        work = "read < go; mkdir late; echo > done"
        agent.runs(f"mkfifo go done; (setsid bash -c '{work}' > /dev/null &)")
        agent.runs("echo > go; read < done")
    late = [s for s in told(shared_cowfs, place) if names([s]) == ["late"]]
    assert [(s["process"]["session"], s["outside"]) for s in late] == [(SESSION, False)]


def test_a_session_that_goes_on_in_another_life(cowfs: Cowfs, mounted: Path) -> None:
    """Its process does not die with the daemon."""
    agent = Agent(cowfs, Path("/"))
    try:
        agent.tells("session-start")
        cowfs.ok("unmount", mounted, cwd=cowfs.top)
        cowfs.ok("mount", mounted, cwd=cowfs.top)
        agent.runs(f"mkdir {mounted}/one")
        (mounted / "two").mkdir()
        found = told(cowfs)
    finally:
        agent.end()
    assert [names([s]) for s in found if s["process"]["session"] == SESSION] == [["one"]]
    assert [names([s]) for s in found if s["outside"]] == [["two"]]
