"""`cowfs mcp`, used by the client of the package `mcp`."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cowfs import __version__
from cowfs.mcp.texts import MOST_BYTES
from tests.cli.command import Cowfs
from tests.cli.conftest import make_project
from tests.mcp.agent import Agent

Start = Callable[..., Agent]
LOOKS = {"status", "log", "changes", "diff", "preview", "show"}
_SPARE = 300
"""Bytes of an answer for what it says besides."""


def top(workspace: Path, name: str) -> Path:
    """A new directory of the workspace for one test."""
    place = workspace / name
    place.mkdir()
    return place


# -- what it offers ---------------------------------------------------------------------------


def test_the_tools_and_their_annotations(bot: Agent) -> None:
    assert bot.said.server_info.name == "cowfs"
    assert bot.said.server_info.version == __version__
    assert "checkpoint" in (bot.said.instructions or "")
    assert bot.tools.keys() == LOOKS | {"checkpoint"}
    for name, tool in bot.tools.items():
        hints = tool.annotations
        assert hints is not None
        assert hints.read_only_hint is (name in LOOKS)
        assert hints.destructive_hint is False
        assert hints.idempotent_hint is (name in LOOKS)
        assert hints.open_world_hint is False
        assert tool.description
        assert "  " not in tool.description
        for parameter, schema in tool.input_schema.get("properties", {}).items():
            assert schema.get("description") or parameter == "limit", (name, parameter)
    assert bot.tools["show"].input_schema["required"] == ["checkpoint", "path"]


def test_restoring_is_not_offered(bot: Agent) -> None:
    assert "restore" not in bot.tools
    said = bot.said.instructions or ""
    assert "`cowfs restore CHECKPOINT`" in said  # how a person does it
    assert "--allow-restore" in said
    assert "restore" in bot.fails("restore", checkpoint="@~1")


def test_restoring_when_it_is_allowed(cowfs: Cowfs, workspace: Path, start: Start) -> None:
    place = top(workspace, "restoring")
    (place / "file").write_text("good\n")
    good = cowfs.ok("checkpoint")["checkpoint"]["id"]
    allowed = start(workspace, "mcp", "--allow-restore")
    hints = allowed.tools["restore"].annotations
    assert hints is not None
    assert (hints.read_only_hint, hints.destructive_hint, hints.idempotent_hint) == (
        False,
        True,
        False,
    )
    (place / "file").write_text("bad\n")
    (place / "other").write_text("stays\n")
    said = allowed.call("restore", checkpoint=good, paths=["restoring"], exclude=["other"])
    assert said.startswith(f"restored {good[:8]}: ")
    assert (place / "file").read_text() == "good\n"
    assert (place / "other").read_text() == "stays\n"
    (rescue,) = re.findall(r"the state before is checkpoint ([0-9a-f]{8})", said)
    allowed.call("restore", checkpoint=rescue, paths=["restoring/file"])
    assert (place / "file").read_text() == "bad\n"
    state = allowed.call("preview", checkpoint=good).splitlines()[1].rpartition(" ")[2]
    (place / "file").write_text("a third time\n")
    refused = allowed.fails("restore", checkpoint=good, paths=["restoring"], expect=state)
    assert "COWFS_STATE_MOVED: the workspace is not what it was" in refused
    assert (place / "file").read_text() == "a third time\n"
    assert "conversation" in (allowed.tools["restore"].description or "")
    assert not [
        name for name in allowed.tools["restore"].input_schema["properties"] if "conv" in name
    ]


def test_the_setting_allows_it_for_good(cowfs: Cowfs, workspace: Path, start: Start) -> None:
    cowfs.ok("config", "mcp.restore", "on")
    try:
        assert "restore" in start(workspace, "mcp").tools
    finally:
        cowfs.ok("config", "--unset", "mcp.restore")
    assert "restore" not in start(workspace, "mcp").tools


# -- the tools --------------------------------------------------------------------------------


def test_checkpoint_and_log(cowfs: Cowfs, workspace: Path, bot: Agent) -> None:
    bot.call("checkpoint", if_changed=True)
    top(workspace, "kept")
    said = bot.call("checkpoint", message="by an agent", label="agents-own")
    assert re.fullmatch(
        r"[0-9a-f]{8}  \d{4}-\d\d-\d\d \d\d:\d\d:\d\d  manual  \+1 ~0 -0"
        r"  \(agents-own\) by an agent",
        said,
    )
    record = cowfs.ok("log", "-n", "1")["checkpoints"][0]
    assert record["id"].startswith(said[:8])
    assert (record["label"], record["message"]) == ("agents-own", "by an agent")
    again = bot.call("checkpoint", message="x", if_changed=True)
    assert again == f"nothing has changed since {said}"
    for number in range(5):
        bot.call("checkpoint", message=f"number {number}\nand more")
    page = bot.call("log", limit=3).splitlines()
    assert [line.rpartition("  ")[2] for line in page[:3]] == ["number 4", "number 3", "number 2"]
    assert page[3] == f"[there are older ones: go on with before={page[2][:8]}]"
    older = bot.call("log", limit=3, before=page[2][:8]).splitlines()
    assert [line[:8] for line in older[2:3]] == [said[:8]]
    everything = bot.call("log", limit=100).splitlines()
    assert len(everything) == len(cowfs.ok("log", "-n", "0")["checkpoints"])


def test_diff_preview_and_show(workspace: Path, bot: Agent) -> None:
    place = top(workspace, "compared")
    (place / "edited").write_text("1\n2\n3\n")
    (place / "gone").write_text("what it was\n")
    bot.call("checkpoint", label="compared")
    (place / "edited").write_text("1\ntwo\n3\n")
    (place / "gone").unlink()
    (place / "new").symlink_to("edited")
    wanted = "M  compared/edited\nD  compared/gone\nA  compared/new"
    assert bot.call("diff", a="compared") == wanted
    assert bot.call("diff") == wanted
    assert bot.call("diff", a="compared", form="lines").splitlines()[0].endswith("  +1 -1")
    assert bot.call("diff", paths=["compared/gone"]) == "D  compared/gone"
    assert bot.call("diff", a="@", b="@") == "no differences"
    patch = bot.call("diff", a="compared", form="patch", paths=["compared/edited"])
    assert patch.splitlines()[-4:] == [" 1", "-2", "+two", " 3"]

    first, second, *lines = bot.call("preview", checkpoint="compared").splitlines()
    assert first.endswith("  (compared)")
    assert second.startswith("would make 3 changes to the present state, which is @")
    assert lines == [
        "M  compared/edited  +1 -1",
        "A  compared/gone  +1 -0",
        "D  compared/new  +0 -1",
    ]
    assert (place / "new").is_symlink()
    some = bot.call(
        "preview", checkpoint="compared", paths=["compared"], exclude=["*e*d/e*", "new"]
    )
    assert some.splitlines()[2:] == ["A  compared/gone  +1 -0"]
    assert bot.call("show", checkpoint="compared", path="compared/gone") == "what it was\n"
    assert bot.call("show", checkpoint="@", path="compared/edited") == "1\ntwo\n3\n"


def test_changes(workspace: Path, bot: Agent) -> None:
    place = top(workspace, "told")
    start = bot.call("checkpoint")[:8]
    subprocess.run(["touch", place / "a"], check=True)
    middle = bot.call("checkpoint")[:8]
    subprocess.run(["rm", place / "a"], check=True)
    made, removed = bot.call("changes", paths=["told"], since=start).splitlines()
    assert made.endswith(f"touch {place}/a` made told/a")
    assert removed.endswith(f"rm {place}/a` removed told/a")
    assert bot.call("changes", paths=["told"], since=middle) == removed
    assert bot.call("changes", paths=["told"], since=start, until=middle) == made
    assert bot.call("changes", paths=["told"], since=start, by="rm") == removed
    assert bot.call("changes", paths=["told"], limit=1) == removed
    assert bot.call("changes", by="nobody-of-this-name") == "no changes are known"


def test_status(workspace: Path, bot: Agent) -> None:
    place = top(workspace, "status")
    bot.call("checkpoint", message="for the status")
    (place / "new").touch()
    lines = bot.call("status").splitlines()
    assert lines[0] == f"workspace: {workspace}"
    assert lines[1] == f"mounted: at {workspace}"
    assert lines[2].endswith("  for the status")
    assert lines[3].startswith("since then: +1 ~0 -0")
    assert lines[4] == "health: ok"


# -- bounds -----------------------------------------------------------------------------------


def pages(bot: Agent, tool: str, **arguments: object) -> list[str]:
    """All pages of a long answer, followed as the answers say."""
    found: list[str] = []
    offset = 0
    while True:
        text = bot.call(tool, **arguments, offset=offset)
        assert len(text.encode()) <= MOST_BYTES + _SPARE
        more = re.search(r"\n\[characters [\d,]+ to [\d,]+[^;]*; go on with offset=(\d+)\]$", text)
        if more is None:
            return [*found, text]
        found.append(text[: more.start()])
        assert int(more[1]) > offset
        offset = int(more[1])


def test_long_answers_come_in_pages(workspace: Path, bot: Agent) -> None:
    place = top(workspace, "long")
    start = bot.call("checkpoint")[:8]
    lines = [f"line {number} " + "é" * (number % 50) for number in range(2000)]
    (place / "text").write_text("\n".join(lines))
    (place / "one-line").write_text("x" * 3 * MOST_BYTES)
    for number in range(600):
        (place / f"{number:03}-{'n' * 60}").touch()
    bot.call("checkpoint")
    shown = pages(bot, "show", checkpoint="@~1", path="long/text")
    assert len(shown) > 2
    assert "\n".join(shown) == "\n".join(lines)
    wide = pages(bot, "show", checkpoint="@~1", path="long/one-line")
    assert "".join(wide) == "x" * 3 * MOST_BYTES
    listed = pages(bot, "diff", a=start)
    assert len(listed) > 1
    assert len("\n".join(listed).splitlines()) == 602
    previewed = pages(bot, "preview", checkpoint=start)
    assert len("\n".join(previewed).splitlines()) == 604
    patch = pages(bot, "diff", a=start, form="patch", paths=["long/text"])
    assert [line[1:] for line in "\n".join(patch).splitlines() if line.startswith("+line")] == lines
    assert bot.call("show", checkpoint="@~1", path="long/text", offset=10**9).startswith("(nothing")
    told = bot.call("changes", paths=["long"], limit=100)
    assert len(told.encode()) <= MOST_BYTES + _SPARE
    for _ in range(40):
        bot.call("checkpoint", message="é" * 400)
    assert len(bot.call("log", limit=100).encode()) <= MOST_BYTES + _SPARE


def test_what_is_no_text(workspace: Path, bot: Agent) -> None:
    place = top(workspace, "odd")
    (place / "binary").write_bytes(bytes(range(256)))
    (place / "latin").write_bytes("grün\n".encode("latin-1"))
    (place / "empty").touch()
    name = os.fsencode(place) + b"/new\nline \xff"
    os.close(os.open(name, os.O_CREAT | os.O_WRONLY))
    bot.call("checkpoint")
    shown = bot.call("show", checkpoint="@~1", path="odd/binary")
    assert shown.startswith("256 bytes, not text")
    assert "`cowfs show @~1:odd/binary > FILE`" in shown
    assert bot.call("show", checkpoint="@~1", path="odd/latin") == "gr\\xfcn\n"
    assert bot.call("show", checkpoint="@~1", path="odd/empty") == "(an empty file)"
    assert "A  odd/new\\nline \\udcff" in bot.call("diff", a="@~2", b="@~1").splitlines()


# -- errors -----------------------------------------------------------------------------------


def test_errors_have_code_and_hint(workspace: Path, bot: Agent) -> None:
    unknown = (
        "COWFS_UNKNOWN_CHECKPOINT: no checkpoint matches 'nope'\n"
        "hint: `cowfs log` lists them. Nothing was changed."
    )
    for tool, arguments in (
        ("show", {"checkpoint": "nope", "path": "readme"}),
        ("diff", {"a": "nope"}),
        ("preview", {"checkpoint": "nope"}),
        ("log", {"before": "nope"}),
    ):
        assert unknown in bot.fails(tool, **arguments)
    said = bot.fails("changes", since="nope")
    assert "COWFS_UNKNOWN_CHECKPOINT: no checkpoint matches 'nope', and it is no time" in said
    assert "COWFS_UNKNOWN_PATH" in bot.fails("show", checkpoint="@", path="nothing")
    assert "COWFS_NOT_A_FILE" in bot.fails("show", checkpoint="@", path="src")
    bot.call("checkpoint", label="topic/one")
    assert "COWFS_LABEL_BESIDE" in bot.fails("checkpoint", label="topic")
    assert "COWFS_BAD_LABEL" in bot.fails("checkpoint", label="-x")
    assert "limit" in bot.fails("log", limit=0)
    assert "message" in bot.fails("checkpoint", message="x" * 2001)
    assert "form" in bot.fails("diff", form="xml")


def test_paths_that_lead_outside(workspace: Path, bot: Agent) -> None:
    (workspace.parent / "outside").write_text("not for agents\n")
    place = top(workspace, "inside")
    (place / "link").symlink_to(workspace.parent)
    bot.call("checkpoint")
    for path in ("../outside", "/etc/passwd", str(workspace.parent / "outside")):
        assert "COWFS_USAGE" in bot.fails("show", checkpoint="@", path=path)
        assert "COWFS_USAGE" in bot.fails("diff", paths=[path])
    for path in ("inside/link/outside",):
        assert "COWFS_" in bot.fails("show", checkpoint="@", path=path)


# -- where ------------------------------------------------------------------------------------


def test_which_workspace(cowfs: Cowfs, workspace: Path, start: Start) -> None:
    elsewhere = cowfs.top / "elsewhere"
    elsewhere.mkdir()
    project = {"CLAUDE_PROJECT_DIR": str(workspace / "src")}
    first = f"workspace: {workspace}"
    assert start(elsewhere, "mcp", env=project).call("status").splitlines()[0] == first
    given = start(elsewhere, "-C", str(workspace), "mcp", env={"CLAUDE_PROJECT_DIR": "/"})
    assert given.call("status").splitlines()[0] == first
    nowhere = start(elsewhere, "mcp")
    assert nowhere.tools.keys() == LOOKS | {"checkpoint"}
    said = nowhere.fails("checkpoint")
    assert f"COWFS_NOT_A_WORKSPACE: {elsewhere} is not inside" in said
    assert f"hint: Start one with `cowfs mount {elsewhere}`" in said
    # it may become one later
    cowfs.ok("mount", elsewhere)
    assert nowhere.call("checkpoint", message="now it is").endswith("now it is")


def test_a_workspace_that_is_not_mounted(cowfs: Cowfs, workspace: Path, start: Start) -> None:
    other = make_project(cowfs.top / "other")
    cowfs.ok("mount", other)
    kept = cowfs.ok("checkpoint", "-m", "kept", cwd=other)["checkpoint"]["id"]
    (other / "readme").write_text("changed\n")
    allowed = start(other, "mcp", "--allow-restore")
    # The server does not keep it busy.
    cowfs.ok("unmount", other)
    note = f"`cowfs mount {other}` goes on.)\n"
    for said in (
        allowed.call("status"),
        allowed.call("log"),
        allowed.call("changes"),
        allowed.call("diff", a=kept),
        allowed.call("preview", checkpoint=kept),
        allowed.call("show", checkpoint=kept, path="readme"),
    ):
        assert said.startswith("(the workspace is not mounted: nothing is being recorded.")
        assert note in said
    assert allowed.call("show", checkpoint=kept, path="readme").endswith("\none\ntwo\n")
    assert "\nM  readme" in allowed.call("diff", a=kept)
    for tool, arguments in (("checkpoint", {}), ("restore", {"checkpoint": kept})):
        said = allowed.fails(tool, **arguments)
        assert f"COWFS_NOT_MOUNTED: {other} is not mounted" in said
        assert f"`cowfs mount {other}` mounts it" in said


# -- the process ------------------------------------------------------------------------------


def test_stdout_is_the_wire_and_the_end_of_stdin_the_end(cowfs: Cowfs, workspace: Path) -> None:
    requests: list[dict[str, Any]] = [
        {
            "id": 1,
            "method": "initialize",
            "params": {
                "protocolVersion": "2025-06-18",
                "capabilities": {},
                "clientInfo": {"name": "test", "version": "1"},
            },
        },
        {"method": "notifications/initialized"},
        {"id": 2, "method": "tools/call", "params": {"name": "status", "arguments": {}}},
        {"id": 3, "method": "tools/call", "params": {"name": "diff", "arguments": {"a": "nope"}}},
    ]
    with cowfs.start(
        "mcp", stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        answers = {}
        for request in requests:
            process.stdin.write(json.dumps({"jsonrpc": "2.0", **request}).encode() + b"\n")
            process.stdin.flush()
            if "id" in request:
                answer = json.loads(process.stdout.readline())
                answers[answer["id"]] = answer
        rest, err = process.communicate(timeout=60)
    assert rest == b""
    assert b"Traceback" not in err
    assert process.returncode == 0
    assert answers[1]["result"]["protocolVersion"] == "2025-06-18"
    assert answers[1]["result"]["serverInfo"]["name"] == "cowfs"
    assert f"workspace: {workspace}" in answers[2]["result"]["content"][0]["text"]
    assert answers[3]["result"]["isError"] is True


def test_an_interrupt_ends_it(cowfs: Cowfs, workspace: Path) -> None:
    with cowfs.start(
        "mcp", stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b'{"jsonrpc": "2.0", "id": 1, "method": "ping"}\n')
        process.stdin.flush()
        assert json.loads(process.stdout.readline())["id"] == 1
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
        assert process.stderr is not None
        assert b"Traceback" not in process.stderr.read()


def test_without_the_package(cowfs: Cowfs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mcp.py").write_text("raise ModuleNotFoundError(\"No module named 'mcp'\")\n")
    others = os.environ.get("PYTHONPATH", "")
    monkeypatch.setitem(cowfs.env, "PYTHONPATH", f"{tmp_path}{os.pathsep}{others}")
    error = cowfs.fails("mcp")
    assert (error["code"], error["exit_code"]) == ("COWFS_EXTRA_MISSING", 80)
    assert f"`{sys.executable} -m pip install 'mcp>=2,<3'`" in error["hint"]
    assert "pipx inject cowfs-workspace" in error["hint"]
    monkeypatch.setitem(cowfs.env, "PYTHONPATH", f"{tmp_path / 'old'}{os.pathsep}{others}")
    (tmp_path / "old" / "mcp" / "server").mkdir(parents=True)
    (tmp_path / "old" / "mcp" / "__init__.py").touch()
    (tmp_path / "old" / "mcp" / "server" / "__init__.py").touch()  # as of version 1: no MCPServer
    assert "cannot import name 'MCPServer'" in cowfs.fails("mcp")["message"]
