"""Conversations as many programs write them: Chat Completions messages, one a line."""

from __future__ import annotations

import json
from typing import Any

from tests.agents.talks import Answer, Talk, Token, Writing


def write(talk: Talk) -> bytes:
    messages: list[dict[str, Any]] = []
    call = 0
    for said in talk:
        messages.append({"role": "user", "content": said.prompt})
        for step in said.steps:
            if isinstance(step, Answer):
                messages.append({"role": "assistant", "content": step.text})
                continue
            names = [f"call_{call + at}" for at in range(len(step.order))]
            call += len(names)
            function = {"name": "run", "arguments": "{}"}
            calls = [{"id": name, "type": "function", "function": function} for name in names]
            messages.append({"role": "assistant", "content": None, "tool_calls": calls})
            for at in step.order:
                messages.append({"role": "tool", "tool_call_id": names[at], "content": "done"})
    return "".join(json.dumps(message) + "\n" for message in messages).encode()


def heard(data: bytes) -> list[Token]:
    tokens = []
    for line in data.splitlines():
        message = json.loads(line)
        for call in message.get("tool_calls", ()):
            tokens.append(Token("call", call["id"]))
        if message["role"] == "tool":
            tokens.append(Token("output", message["tool_call_id"]))
        elif message["content"] is not None:
            kind = "user" if message["role"] == "user" else "model"
            tokens.append(Token(kind, message["content"]))
    return tokens


GENERIC = Writing("generic", "talk", "/home/ada/.tally/talk.jsonl", write, heard, heard)
