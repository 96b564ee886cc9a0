"""The agent that docs/agents.md adds, as it stands there."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest

from cowfs import agents
from cowfs.agents.base import MAIN, START, NotCopyableError, Turn
from cowfs.agents.settings import USER, Where
from cowfs.service.sessions.recording import Event

PAGE = Path(__file__).parents[2] / "docs" / "agents.md"
TALK = b"".join(
    json.dumps({"who": who, "text": text}).encode() + b"\n"
    for who, text in (("user", "add"), ("tally", "three"), ("user", "and two"), ("tally", "five"))
)


def programs() -> dict[str, str]:
    """The name of a module to its text."""
    found = re.findall(
        r"^`cowfs/agents/tally/(\w+)\.py`.*?:\n\n```python\n(.*?)```$",
        PAGE.read_text(encoding="utf-8"),
        re.MULTILINE | re.DOTALL,
    )
    return dict(found)


@pytest.fixture(scope="module")
def tally() -> dict[str, ModuleType]:
    made = {}
    for name, text in programs().items():
        made[name] = ModuleType(f"tally.{name}")
        sys.modules[f"tally.{name}"] = made[name]
        exec(compile(text, f"{PAGE}:{name}", "exec"), made[name].__dict__)
    assert sorted(made) == ["adapter", "hooks", "settings"]
    return made


def copy(tally: dict[str, ModuleType], data: bytes, leaf: str = "") -> Any:
    adapter = tally["adapter"].adapter("tally")
    where = {"transcript": "/t/talk.jsonl", "cwd": "/w", "session": "talk"}
    return adapter.copy({MAIN: data}, **where, leaf=leaf)


def test_it_reads(tally: dict[str, ModuleType]) -> None:
    adapter = tally["adapter"].adapter("tally")
    read = adapter.read({MAIN: TALK + b'{"who": "us'})
    assert read.turns == (Turn("add", leaf=START), Turn("and two", leaf="2"))
    assert (read.last_answer, read.leaf) == ("five", "4")
    assert adapter.complete({MAIN: TALK}, "five")
    assert [source.path for source in adapter.sources("/t/talk.jsonl")] == ["/t/talk.jsonl"]


def test_it_copies(tally: dict[str, ModuleType]) -> None:
    made = copy(tally, TALK)
    assert made.files == {f"/t/{made.session}.jsonl": TALK}
    assert made.command == ("tally", "--continue", made.session)
    earlier = copy(tally, TALK, leaf="3")
    assert list(earlier.files.values()) == [b"".join(TALK.splitlines(keepends=True)[:2])]
    assert earlier.notes
    for data, leaf in ((b"", ""), (TALK, START), (TALK, "9"), (b"\x00\n", "")):
        with pytest.raises(NotCopyableError):
            copy(tally, data, leaf)


def test_its_hooks(tally: dict[str, ModuleType]) -> None:
    said = {"id": "talk", "file": "/t/talk.jsonl", "question": "add", "directory": "/w"}
    hooks = tally["hooks"]
    made = msgspec.convert({"agent": "tally", **hooks.event("asked", said, {})}, Event)
    assert (made.event, made.session, made.prompt) == ("prompt", "talk", "add")
    assert hooks.event("slept", said, {}) is None
    assert hooks.directories(said, {"TALLY_DIR": "/x"}) == ["/w", "/x"]
    assert hooks.answer("asked", said, "c", "") == "c"


def test_its_settings(tally: dict[str, ModuleType]) -> None:
    [made] = tally["settings"].settings(Where(USER, "/home/ada", "/w", {}))
    assert made.path == "/home/ada/.tally/hooks.json"
    assert all(tally["settings"].is_ours(entry.value) for entry in made.entries)


@pytest.mark.parametrize("name", [*agents.NAMES, "generic", "tally"])
def test_a_hook_imports_next_to_nothing(name: str, tmp_path: Path) -> None:
    """What every agent's module `hooks` may import: it is run at every tool call."""
    module = f"cowfs.agents.{name}.hooks"
    if name == "tally":
        (tmp_path / "tally_hooks.py").write_text(programs()["hooks"])
        module = "tally_hooks"
    code = (
        f"import sys; before = set(sys.modules); import {module}; print(*set(sys.modules) - before)"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", code],
        env={"PYTHONPATH": f"{tmp_path}:{PAGE.parents[1]}"},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    allowed = {"cowfs", "cowfs.agents", "cowfs.agents.events", "cowfs.agents.reading_hooks"}
    allowed |= {"__future__", module, module.rpartition(".")[0]}
    allowed |= {"cowfs.agents.generic", "cowfs.agents.generic.hooks"}
    assert set(done.stdout.split()) <= allowed
