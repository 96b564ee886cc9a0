"""Conversations as Gemini CLI 0.61.0 writes them."""

from __future__ import annotations

import json
from typing import Any

from tests.agents.talks import Answer, Talk, Token, Writing

SESSION = "813b408b-30ae-4e2a-b19f-85fc62ba8699"
CHATS = "/home/ada/.gemini/tmp/shop/chats"
TRANSCRIPT = f"{CHATS}/session-2026-11-29T10-00-813b408b.jsonl"
FIRST = {
    "sessionId": SESSION,
    "projectHash": "6ae677be0ec94bff26c86fcb9d71329c71f5d8411da7e7f805220895bfd46999",
    "startTime": "2026-11-29T10:00:00.000Z",
    "lastUpdated": "2026-11-29T10:00:00.000Z",
    "kind": "main",
}
CONTEXT = {
    "id": "d04923d38bb0f6017037e74183378ef4",
    "timestamp": "2026-11-29T10:00:00.000Z",
    "type": "user",
    "content": [{"text": "<session_context>\nThis is the Gemini CLI.\n</session_context>"}],
}


class Chat:
    """The lines so far, and the messages that they amount to."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.messages = 0
        self.add(FIRST)
        self.add({"$set": {"messages": [CONTEXT]}})

    def add(self, record: dict[str, Any]) -> None:
        self.lines.append(json.dumps(record) + "\n")

    def message(self, kind: str, content: Any, **more: Any) -> dict[str, Any]:
        """A new message, as it is first written."""
        self.messages += 1
        made = {
            "id": f"m{self.messages}",
            "timestamp": f"2026-11-29T10:00:{self.messages % 60:02}.000Z",
            "type": kind,
            "content": content,
            **more,
        }
        self.add(made)
        self.add({"$set": {"lastUpdated": made["timestamp"]}})
        return made

    def calls(self, names: list[str], order: tuple[int, ...]) -> None:
        """The model calls tools; all that they answered is written when the last one has."""
        said = self.message("gemini", "", thoughts=[])
        answers = {name: {"functionResponse": {"id": name, "name": "run"}} for name in names}
        done = [
            {"id": name, "name": "run", "args": {}, "result": [answers[name]], "status": "success"}
            for name in names
        ]
        self.add({**said, "toolCalls": done})
        self.message("user", [answers[names[at]] for at in order])


def write(talk: Talk) -> bytes:
    chat = Chat()
    call = 0
    for said in talk:
        chat.message("user", [{"text": said.prompt}])
        for step in said.steps:
            if isinstance(step, Answer):
                chat.message("gemini", step.text, thoughts=[], model="gemini-2.5-flash")
            else:
                names = [f"call{call + at}" for at in range(len(step.order))]
                call += len(names)
                chat.calls(names, step.order)
    return "".join(chat.lines).encode()


def heard(data: bytes) -> list[Token]:
    """From the messages as they are at the end, as the client sends them. A message of the model
    that is empty is a call under way."""
    messages: dict[str, dict[str, Any]] = {}
    for line in data.splitlines():
        record = json.loads(line)
        if "id" in record:
            messages[record["id"]] = record
    tokens = []
    for message in messages.values():
        calls = [call["id"] for call in message.get("toolCalls", ())]
        tokens += [Token("call", name) for name in calls]
        tokens += [Token("output", name) for name in calls]
        if isinstance(message["content"], str):
            if message["content"]:
                tokens.append(Token("model", message["content"]))
            elif not calls:
                tokens.append(Token("call", message["id"]))
        else:
            tokens += [Token("user", part["text"]) for part in message["content"] if "text" in part]
    return tokens


GEMINI = Writing("gemini", SESSION, TRANSCRIPT, write, heard, heard)
