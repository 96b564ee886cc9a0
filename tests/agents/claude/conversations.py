"""Conversations in the format of Claude Code, 2.1.197 and 2.1.332, written line by line."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from typing import Any

SESSION = "0d4b3c52-0a1e-4d6f-9b54-1f2f6f1f0a01"
PROJECTS = "/home/u/.claude/projects"
CWD = "/w/my.app"
TRANSCRIPT = f"{PROJECTS}/-w-my-app/{SESSION}.jsonl"
BESIDE = f"{PROJECTS}/-w-my-app/{SESSION}"
NEW, OLD = "2.1.332", "2.1.197"

Block = dict[str, Any]


def say(text: str) -> Block:
    return {"type": "text", "text": text}


def think(text: str) -> Block:
    return {"type": "thinking", "thinking": text, "signature": "EqoB+/c=="}


def call(name: str, **given: Any) -> Block:
    """A call of a tool; `Transcript.answer` gives it its id."""
    return {"type": "tool_use", "name": name, "input": given}


class Transcript:
    """A transcript as it is written. at: the entry that the next one follows."""

    def __init__(self, version: str = NEW, session: str = SESSION, cwd: str = CWD) -> None:
        self.version = version
        self.session = session
        self.cwd = cwd
        self.at: str | None = None
        self.lines: list[bytes] = []
        self.subagent = ""
        self._ids = _ids(session)
        self._second = 0
        self._prompt = ""

    @property
    def data(self) -> bytes:
        return b"".join(line + b"\n" for line in self.lines)

    @property
    def is_new(self) -> bool:
        return self.version == NEW

    def raw(self, line: bytes) -> None:
        self.lines.append(line)

    def meta(self, kind: str, **members: Any) -> None:
        """A line that is no entry."""
        self.raw(_packed({"type": kind, **members, "sessionId": self.session}))

    def entry(self, kind: str, *, parent: str | None = "", **members: Any) -> str:
        """An entry; its uuid. parent: "" for the last one."""
        name = str(uuid.UUID(bytes=next(self._ids)[:16], version=4))
        self._second += 1
        head: Block = {"parentUuid": self.at if parent == "" else parent}
        head["isSidechain"] = bool(self.subagent)
        if self.subagent:
            head["agentId"] = self.subagent
        tail = {
            "uuid": name,
            "timestamp": f"2026-11-22T10:{self._second // 60:02}:{self._second % 60:02}.000Z",
            "userType": "external",
            "entrypoint": "cli",
            "cwd": self.cwd,
            "sessionId": self.session,
            "version": self.version,
            "gitBranch": "main",
        }
        self.raw(_packed({**head, "type": kind, **members, **tail}))
        self.at = name
        return name

    def user(self, content: Any, **members: Any) -> str:
        """An entry in the user's name."""
        return self.entry("user", message={"role": "user", "content": content}, **members)

    def prompt(self, text: str, **members: Any) -> str:
        """What a user asks; its id."""
        self._prompt = str(uuid.UUID(bytes=next(self._ids)[:16], version=4))
        if self.is_new:
            self.meta("queue-operation", operation="enqueue", content=text)
            self.meta("permission-mode", permissionMode="acceptEdits")
        self.user(text, promptId=self._prompt, **members)
        if self.is_new:
            self.attach("environment", text="Platform: linux")
            self.attach("prompt_snapshot", text="You are an agent.")
        return self._prompt

    def attach(self, kind: str, **members: Any) -> str:
        return self.entry("attachment", attachment={"type": kind, **members})

    def answer(self, *blocks: Block) -> list[tuple[str, str]]:
        """An answer of the model, a line for each block; (uuid of the line, id) of its calls."""
        message = f"msg_{next(self._ids).hex()[:12]}"
        if self.is_new:
            self.meta("api-request", requestRef=message)
        calls = []
        for number, block in enumerate(blocks):
            asked = block["type"] == "tool_use"
            if asked:
                block = {**block, "id": f"toolu_{next(self._ids).hex()[:12]}"}
            new: Block = {"apiBlockIndex": number, "requestRef": message} if self.is_new else {}
            line = self.entry(
                "assistant",
                message={
                    "model": "stub",
                    "id": message,
                    "type": "message",
                    "role": "assistant",
                    "content": [block],
                    "stop_reason": None,
                    "stop_sequence": None,
                    "usage": {"input_tokens": 10, "output_tokens": 5},
                },
                requestId=f"req_{message[4:]}",
                **new,
            )
            if asked:
                calls.append((line, block["id"]))
        return calls

    def result(self, of: tuple[str, str], content: Any = "ok", **members: Any) -> str:
        """What a tool says. Its parent is the line of the call."""
        line, name = of
        block = {"tool_use_id": name, "type": "tool_result", "content": content, "is_error": False}
        said = {"toolUseResult": {"stdout": "ok"}, "sourceToolAssistantUUID": line, **members}
        return self.user([block], parent=line, **said)

    def end(self) -> str:
        """What the program writes when a turn is over; the last entry."""
        if self.is_new:
            self.entry("system", subtype="stop_hook_summary", hookCount=1)
            self.entry("system", subtype="turn_duration", durationMs=1500)
            self.meta("last-prompt", lastPrompt="p", leafUuid=self.at)
            self.meta("cost-state", total=0.25)
        return self.at or ""

    def turn(self, asked: str, answered: str) -> str:
        """A turn without tools; its last entry."""
        self.prompt(asked)
        self.answer(say(answered))
        return self.end()

    def compact(self, kept: list[str] | None = None, trigger: str = "manual") -> str:
        """Make the conversation shorter; the entry with the summary. kept: entries that stay."""
        before = self.at
        boundary = self.entry(
            "system",
            parent=None,
            logicalParentUuid=before,
            subtype="compact_boundary",
            content="Conversation compacted",
            isMeta=False,
            compactMetadata={"trigger": trigger, "preTokens": 150_000},
        )
        summary = self.user("A summary.", isCompactSummary=True, isVisibleInTranscriptOnly=True)
        if kept:
            line = json.loads(self.lines[-2])
            line["compactMetadata"] |= {
                "preservedSegment": {
                    "headUuid": kept[0],
                    "anchorUuid": summary,
                    "tailUuid": kept[-1],
                },
                "preservedMessages": {"anchorUuid": summary, "uuids": kept, "allUuids": kept},
            }
            self.lines[-2] = _packed(line)
        assert boundary != summary
        return summary


def subagent(calls: str, name: str = "a1b2c3d", session: str = SESSION) -> dict[str, bytes]:
    """The two files of a sub-agent. calls: id of the call that started it."""
    made = Transcript(session=session)
    made.subagent = name
    made.user("do the small thing")
    made.result(made.answer(say("I look."), call("Bash", command="ls"))[0])
    made.answer(say("Done."))
    meta = {"agentType": "general-purpose", "description": "d", "toolUseId": calls, "spawnDepth": 1}
    return {
        f"subagents/agent-{name}.jsonl": made.data,
        f"subagents/agent-{name}.meta.json": json.dumps(meta, indent=2).encode(),
    }


def parallel(version: str = NEW) -> tuple[Transcript, list[tuple[str, str]]]:
    """A turn with two calls at once; the calls."""
    made = Transcript(version)
    made.prompt("make two files")
    calls = made.answer(
        think("Two at once."), say("Running two."), call("Bash", command="x"), call("Write", a=1)
    )
    for one in calls:
        made.result(one)
    made.answer(say("Made two."))
    made.end()
    return made, calls


def _packed(line: dict[str, Any]) -> bytes:
    return json.dumps(line, separators=(",", ":"), ensure_ascii=False).encode()


def _ids(session: str) -> Iterator[bytes]:
    """Names that are the same in every run, and others in another session."""
    space = uuid.uuid5(uuid.NAMESPACE_URL, session)
    number = 0
    while True:
        number += 1
        yield uuid.uuid5(space, str(number)).bytes
