"""Conversations as cowfs' plugin writes them, with OpenCode 1.18.33."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from tests.agents.talks import Answer, Talk, Token, Writing

SESSION = "ses_dd3d317d3ffeMiZhzbW3ihiEbx"
DIRECTORY = "/home/ada/.local/state/cowfs/opencode"
TRANSCRIPT = f"{DIRECTORY}/{SESSION}.jsonl"
INFO = {
    "id": SESSION,
    "slug": "silent-river",
    "projectID": "global",
    "directory": "/home/ada/shop",
    "title": "Add them up",
    "version": "1.18.33",
    "cost": 0.25,
    "time": {"created": 1796037470253, "updated": 1796037470253},
}


class Session:
    """The lines so far."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._names = 0
        self.add({"info": INFO})

    def add(self, record: dict[str, Any]) -> None:
        self.lines.append(json.dumps(record, sort_keys=True) + "\n")

    def name(self, kind: str) -> str:
        """A new id; they sort in the order in which they are made."""
        self._names += 1
        return f"{kind}_{0x22C2CE95A000 + self._names:012x}{'Mqk7Z8e7Q1w8g7'}"

    def part(self, message: str, kind: str, **more: Any) -> dict[str, Any]:
        where = {"sessionID": SESSION, "messageID": message}
        return {"id": self.name("prt"), **where, "type": kind, **more}

    def message(self, role: str, created: int) -> dict[str, Any]:
        info = {"id": self.name("msg"), "sessionID": SESSION, "role": role, "agent": "build"}
        return {"info": {**info, "time": {"created": created}}, "parts": []}

    def write(self, message: dict[str, Any]) -> None:
        self.add({"message": message})


def write(talk: Talk) -> bytes:
    session = Session()
    call = 0
    for number, said in enumerate(talk):
        created = 1796037470554 + 1000 * number
        asked = session.message("user", created)
        asked["parts"].append(session.part(asked["info"]["id"], "text", text=said.prompt))
        session.write(asked)
        for step in said.steps:
            answer = session.message("assistant", created)
            name = answer["info"]["id"]
            answer["info"]["parentID"] = asked["info"]["id"]
            answer["parts"].append(session.part(name, "step-start"))
            if isinstance(step, Answer):
                answer["parts"].append(session.part(name, "text", text=step.text))
            else:
                calls = [
                    session.part(
                        name, "tool", tool="bash", callID=f"call_{call + at}", state={"input": {}}
                    )
                    for at in range(len(step.order))
                ]
                call += len(calls)
                answer["parts"] += calls
                for made in calls:
                    made["state"]["status"] = "running"
                session.write(answer)
                for at in step.order:
                    calls[at]["state"] = {"input": {}, "status": "completed", "output": "done"}
                    session.write(answer)
            answer["info"]["time"] = {"created": created, "completed": created + 500}
            answer["info"]["finish"] = "stop" if isinstance(step, Answer) else "tool-calls"
            session.write(answer)
    return "".join(session.lines).encode()


def heard(data: bytes) -> list[Token]:
    messages: dict[str, dict[str, Any]] = {}
    for line in data.splitlines():
        message = json.loads(line).get("message")
        if message is not None:
            messages[message["info"]["id"]] = message
    return _tokens(messages.values())


def imported(data: bytes) -> list[Token]:
    """The same of a file for `opencode import`."""
    document = json.loads(data)
    assert document["info"]["id"] != SESSION
    for message in document["messages"]:
        for holder in (message["info"], *message["parts"]):
            assert holder["sessionID"] == document["info"]["id"]
    names = [message["info"]["id"] for message in document["messages"]]
    assert names == sorted(names)
    return _tokens(document["messages"])


def _tokens(messages: Iterable[dict[str, Any]]) -> list[Token]:
    """A message that is not finished is heard as a call without an output."""
    tokens = []
    for message in messages:
        info = message["info"]
        done = info["role"] == "user" or "completed" in info["time"]
        for part in message["parts"]:
            if part["type"] == "tool":
                tokens.append(Token("call", part["callID"]))
        for part in message["parts"]:
            if part["type"] == "tool" and done:
                tokens.append(Token("output", part["callID"]))
            elif part["type"] == "text":
                tokens.append(Token("user" if info["role"] == "user" else "model", part["text"]))
    return tokens


OPENCODE = Writing("opencode", SESSION, TRANSCRIPT, write, heard, imported)
