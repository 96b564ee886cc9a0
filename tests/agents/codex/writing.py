"""Conversations as Codex CLI 0.171.0 writes them; of what is in a rollout only some."""

from __future__ import annotations

import json
from typing import Any

from tests.agents.talks import Answer, Talk, Token, Writing

SESSION = "019ad4c0-7a5e-7d33-9c55-1f0d9a3c2b10"
DAY = "/home/ada/.codex/sessions/2026/11/29"
TRANSCRIPT = f"{DAY}/rollout-2026-11-29T10-00-00-{SESSION}.jsonl"
META = {
    "id": SESSION,
    "session_id": SESSION,
    "timestamp": "2026-11-29T10:00:00.000Z",
    "cwd": "/home/ada/shop",
    "originator": "codex_exec",
    "cli_version": "0.171.0",
    "source": "exec",
    "model_provider": "stub",
}


class _Rollout:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def add(self, kind: str, payload: dict[str, Any]) -> None:
        number = len(self.lines)
        line = {
            "timestamp": f"2026-11-29T10:00:{number % 60:02}.000Z",
            "ordinal": number,
            "type": kind,
            "payload": payload,
        }
        self.lines.append(json.dumps(line) + "\n")

    def event(self, kind: str, **more: object) -> None:
        self.add("event_msg", {"type": kind, **more})

    def item(self, kind: str, **more: object) -> None:
        self.add("response_item", {"type": kind, **more})

    def message(self, role: str, text: str) -> None:
        kind = "output_text" if role == "assistant" else "input_text"
        self.item("message", role=role, content=[{"type": kind, "text": text}])


def write(talk: Talk) -> bytes:
    rollout = _Rollout()
    rollout.add("session_meta", META)
    call = 0
    for number, said in enumerate(talk, 1):
        turn = f"turn-{number}"
        rollout.event("task_started", turn_id=turn, model_context_window=272000)
        if number == 1:
            rollout.message("developer", "<permissions instructions>\n</permissions instructions>")
            rollout.message("user", "<environment_context>\n</environment_context>")
        rollout.add("turn_context", {"turn_id": turn, "cwd": "/home/ada/shop", "model": "stub"})
        rollout.message("user", said.prompt)
        asked = {"type": "UserMessage", "content": [{"type": "text", "text": said.prompt}]}
        rollout.event("item_completed", thread_id=SESSION, turn_id=turn, item=asked)
        for step in said.steps:
            if isinstance(step, Answer):
                shown = {"type": "AgentMessage", "content": [{"type": "Text", "text": step.text}]}
                rollout.event("item_completed", thread_id=SESSION, turn_id=turn, item=shown)
                rollout.message("assistant", step.text)
            else:
                names = [f"call_{call + at}" for at in range(len(step.order))]
                call += len(names)
                for name in names:
                    arguments = json.dumps({"cmd": f"echo {name}"})
                    rollout.item(
                        "function_call", name="exec_command", arguments=arguments, call_id=name
                    )
                for at in step.order:
                    rollout.item("function_call_output", call_id=names[at], output="done")
            rollout.event("token_count", info=None)
        last = said.steps[-1]
        assert isinstance(last, Answer)
        rollout.event("task_complete", turn_id=turn, last_agent_message=last.text)
    return "".join(rollout.lines).encode()


def heard(data: bytes) -> list[Token]:
    """From the response items alone, as Codex does."""
    tokens = []
    for line in data.splitlines():
        entry = json.loads(line)
        payload = entry["payload"]
        if entry["type"] != "response_item":
            continue
        if payload["type"] == "message":
            text = payload["content"][0]["text"]
            if payload["role"] == "assistant":
                tokens.append(Token("model", text))
            elif payload["role"] == "user" and not text.startswith("<environment_context>"):
                tokens.append(Token("user", text))
        elif payload["type"] == "function_call":
            tokens.append(Token("call", payload["call_id"]))
        elif payload["type"] == "function_call_output":
            tokens.append(Token("output", payload["call_id"]))
    return tokens


CODEX = Writing("codex", SESSION, TRANSCRIPT, write, heard, heard)
