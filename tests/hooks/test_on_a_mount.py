"""Events of several agents at once, on a real mount."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from tests.conftest import MountFunction
from tests.support.mounting import Mounted

SESSIONS, PROMPTS, CALLS = 3, 4, 3


def test_agents_and_their_tools_at_the_same_time(mount: MountFunction, base: Path) -> None:
    """Each agent sees its own changes in what it is told, and each prompt has one checkpoint, also
    while others are made by hand."""
    mounted = mount(base)
    faults: list[str] = []
    made: list[str] = []

    def call(session: str, prompt: str, number: int) -> None:
        name = f"{session}-{prompt}-{number}"
        fields = {"tool": "Bash", "tool_id": name, "prompt_id": prompt, "wait": 30.0}
        event(mounted, session, "tool-start", **fields)
        (mounted.mountpoint / name).write_text(name)
        told = event(mounted, session, "tool-end", **fields)["changes"]
        paths = [row["path"] for row in (told or {}).get("created", [])]
        if name not in paths:
            faults.append(f"{name} is not in {told}")

    def work(session: str) -> None:
        event(mounted, session, "session-start")
        for at in range(PROMPTS):
            prompt = f"{session}-p{at}"
            fields = {"prompt": prompt, "prompt_id": prompt, "wait": 30.0}
            done = [event(mounted, session, "prompt", **fields) for _ in range(2)]
            made.extend(answer["checkpoint"]["id"] for answer in done if answer["made"])
            together(
                [threading.Thread(target=call, args=(session, prompt, n)) for n in range(CALLS)]
            )
            event(mounted, session, "turn-end", prompt_id=prompt, wait=30.0)
        event(mounted, session, "session-end", wait=30.0)

    def others() -> None:
        for _ in range(PROMPTS):
            mounted.checkpoint("by hand")
            mounted.call("flush")

    together(
        [threading.Thread(target=work, args=(f"s{n}",)) for n in range(SESSIONS)]
        + [threading.Thread(target=others)]
    )
    assert faults == []
    assert len(set(made)) == len(made) == SESSIONS * PROMPTS


def together(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def event(mounted: Mounted, session: str, name: str, **fields: Any) -> Any:
    known = {"agent": "claude", "session": session, "cwd": str(mounted.mountpoint)}
    return mounted.call("session.event", **{**known, "event": name, **fields})


def test_a_prompt_is_durable_when_it_is_answered(mounted: Any, base: Path, tmp_path: Path) -> None:
    """The daemon is killed right after the answer: the checkpoint and the session are there."""
    store = tmp_path / "store"
    with mounted(base, store, check=False) as first:
        (first.mountpoint / "a").write_text("1")
        answer = event(first, "s1", "prompt", prompt="go", prompt_id="p1")
        first.kill()
    with mounted(base, store) as second:
        last = second.call("status")["last_checkpoint"]
        assert (last["id"], last["kind"]) == (answer["checkpoint"]["id"], "prompt")
        assert (second.mountpoint / "a").read_text() == "1"
