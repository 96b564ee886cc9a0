"""Gemini CLI: a conversation is a *chat*, a file of JSON lines that only grows.

`~/.gemini/tmp/PROJECT/chats/session-TIME-ID8.jsonl`. The first line has `sessionId`; then come
messages, with `id` and `type` (`user`, `gemini`, `info`, `error`, `warning`). A message that
changes, as when a tool has answered, is written again; the last one counts. `{"$set": {...}}`
changes what the first line says, or all `messages`; `{"$rewindTo": ID}` takes back that message and
all after it. What tools answered stands in the `toolCalls` of the message, and in a message of the
user as well. Older versions wrote one JSON document, `session-....json`.

Sub-agents have files in `chats/SESSION/`; long outputs of tools are in `tool-outputs/`.

A client that goes on with a chat adds to its file, and leaves an empty one of the same id8 behind.
A client that starts later takes that for damaged and deletes both (0.61.0). It finds a chat by the
id in the file, so the name of a copy has another id8: then it is not deleted with the empty one.

Checked with Gemini CLI 0.61.0.

Threading: see base.py.
"""

from __future__ import annotations

import os
import re
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from cowfs.agents.base import MAIN, Conversation, Copy, NotCopyableError, Source, Turn
from cowfs.agents.cutting import entry, last_cut, up_to
from cowfs.agents.lenient import Line, lines, mapping, packed, sequence, text, texts, value

_NAME = re.compile(r"(session-.+-)([^-]{8})\.jsonl")
_FIRST_BYTES = 4096
_DONE = ("success", "error", "cancelled")
"""A call with one of these has its answer."""
_CONTEXT = "<session_context>"
"""What the first message of a user begins with, which is the client's own."""


class Gemini:
    """See the module."""

    name = "gemini"
    title = "Gemini CLI"

    def sources(self, transcript: str) -> list[Source]:
        if not transcript.endswith(".jsonl"):
            return [Source(MAIN, transcript, "whole")]
        found = [Source(MAIN, transcript, "lines")]
        session = _session_of(transcript)
        if session:
            chats = os.path.dirname(transcript)
            outputs = os.path.join("tool-outputs", f"session-{session}")
            found += _inside(chats, session, "lines")
            found += _inside(os.path.dirname(chats), outputs, "whole")
        return found

    def read(self, files: Mapping[str, bytes]) -> Conversation:
        data = files.get(MAIN, b"")
        found = lines(data)
        chat = _Chat()
        for line in found:
            chat.take(line.value, entry(line.number - 1))
        leaf = entry(len(found))
        if "sessionId" not in chat.facts or not chat.messages:
            whole = mapping(value(data))
            if "messages" in whole:
                chat, leaf = _Chat(), ""
                chat.take({"$set": whole}, "")
        return chat.conversation(leaf)

    def complete(self, files: Mapping[str, bytes], last_answer: str) -> bool:
        wanted, found = last_answer.strip(), self.read(files).last_answer.strip()
        return not wanted or (found != "" and wanted.endswith(found))  # the hook joins all texts

    def copy(
        self, files: Mapping[str, bytes], *, transcript: str, cwd: str, session: str, leaf: str = ""
    ) -> Copy:
        data = files.get(MAIN, b"")
        directory, name = os.path.split(transcript)
        match = _NAME.fullmatch(name)
        if match is None:
            raise NotCopyableError(f"{name!r} is no name of a chat that Gemini CLI still writes")
        wanted = up_to(lines(data), leaf)
        kept, notes = last_cut(wanted, _cuts(wanted), _says)
        new, id8 = str(uuid.uuid4()), uuid.uuid4().hex[:8]
        path = os.path.join(directory, f"{match[1]}{id8}.jsonl")
        return Copy(
            session=new,
            files={path: b"".join(_renamed(line, data, new) for line in kept) + _touched()},
            command=self.resume_command(new, cwd),
            cwd=_root_of(transcript) or cwd,
            notes=notes,
        )

    def resume_command(self, session: str, cwd: str) -> tuple[str, ...]:
        return ("gemini", "--resume", session)


class _Chat:
    """What the records say so far. facts: of the first line and `$set`. messages: id to message, as
    far as they are still part of it. leaves: id of a message to the entry before it."""

    def __init__(self) -> None:
        self.facts: dict[str, Any] = {}
        self.messages: dict[str, dict[str, Any]] = {}
        self.leaves: dict[str, str] = {}
        self._called: Counter[str] = Counter()
        self._answered: Counter[str] = Counter()
        self._open: set[str] = set()

    def take(self, record: dict[str, Any], before: str) -> None:
        if "$rewindTo" in record:
            names = list(self.messages)
            name = text(record["$rewindTo"])
            for gone in names[names.index(name) if name in names else 0 :]:
                self._count(self.messages.pop(gone), -1)
        elif text(record.get("id")):
            self._put(record, before)
        elif "$set" in record:
            changed = mapping(record["$set"])
            self.facts.update(changed)
            if "messages" in changed:
                for name in list(self.messages):
                    self._count(self.messages.pop(name), -1)
                for message in sequence(changed["messages"]):
                    self._put(mapping(message), before)
        elif "sessionId" in record:
            self.facts.update(record)

    def _put(self, message: dict[str, Any], before: str) -> None:
        name = text(message.get("id"))
        if name:
            self._count(self.messages.get(name, {}), -1)
            self._count(message, 1)
            self.messages[name] = message
            self.leaves.setdefault(name, before)

    def _count(self, message: dict[str, Any], times: int) -> None:
        """Calls are in `toolCalls`, with their answers, or in parts, and answers in other ones."""
        called, answered = [], []
        for part in map(mapping, sequence(message.get("content"))):
            called.append(text(mapping(part.get("functionCall")).get("id")))
            answered.append(text(mapping(part.get("functionResponse")).get("id")))
        for call in map(mapping, sequence(message.get("toolCalls"))):
            called.append(text(call.get("id")))
            if text(call.get("status")) in _DONE and call.get("result") is not None:
                answered.append(text(call.get("id")))
        for counter, names in ((self._called, called), (self._answered, answered)):
            for name in names:
                counter[name] += times
        for name in filter(None, (*called, *answered)):
            is_open = self._called[name] > 0 and not self._answered[name]
            (self._open.add if is_open else self._open.discard)(name)

    def is_settled(self) -> bool:
        """Whether the model has had the last word, or one of its calls, and every call its
        answer."""
        for message in reversed(self.messages.values()):
            if message.get("type") in ("user", "gemini"):
                return _is_said(message) and not self._open
        return False

    def conversation(self, leaf: str) -> Conversation:
        turns, answer = [], ""
        for name, message in self.messages.items():
            if message.get("type") == "user":
                shown = texts(message.get("displayContent")) or texts(message.get("content"))
                if shown and not shown.startswith(_CONTEXT):
                    moment = text(message.get("timestamp"))
                    turns.append(Turn(shown, name, moment, self.leaves[name]))
            elif message.get("type") == "gemini":
                answer = texts(message.get("content")) or answer
        return Conversation(
            title=text(self.facts.get("summary")),
            turns=tuple(turns),
            last_answer=answer,
            leaf=leaf,
        )


def _says(line: Line) -> bool:
    """Whether it is a message of the user, of a tool or of the model."""
    kind, said = line.value.get("type"), texts(line.value.get("content"))
    return kind == "gemini" or (kind == "user" and not said.startswith(_CONTEXT))


def _is_said(message: dict[str, Any]) -> bool:
    """Whether the model has said something in a message, or tools have answered. A message of the
    model is empty at first when it begins with a call."""
    if message.get("type") == "gemini":
        return bool(message.get("content") or message.get("toolCalls"))
    return any("functionResponse" in mapping(part) for part in sequence(message.get("content")))


def _cuts(wanted: Sequence[Line]) -> Iterator[int]:
    """After which lines nothing is open. Those that only say again what was said are none: a client
    that goes on with a chat writes all of it once more, and what tools answered twice."""
    chat = _Chat()
    for line in wanted:
        is_set = "$set" in line.value
        before = set(chat.messages) if "messages" in mapping(line.value.get("$set")) else set()
        chat.take(line.value, "")
        if chat.is_settled() and not (is_set and before <= chat.messages.keys()):
            yield line.number


def _touched() -> bytes:
    """The last line of a copy: it is of today, for the client deletes what is old."""
    return packed({"$set": {"lastUpdated": datetime.now(UTC).isoformat()}})


def _renamed(line: Line, data: bytes, new: str) -> bytes:
    """A line with the id of the copy."""
    changed = dict(line.value)
    facts = mapping(changed.get("$set"))
    if text(changed.get("sessionId")):
        changed["sessionId"] = new
    elif text(facts.get("sessionId")):
        changed["$set"] = {**facts, "sessionId": new}
    else:
        return data[line.start : line.end]
    try:
        return packed(changed)
    except ValueError:
        raise NotCopyableError("a line holds what JSON has no word for") from None


def _session_of(transcript: str) -> str:
    """Id of the session of a chat, "" when it does not say."""
    try:
        with open(transcript, "rb") as file:
            first = file.read(_FIRST_BYTES)
    except OSError:
        return ""
    found = text(mapping(value(first.split(b"\n")[0])).get("sessionId"))
    return found if re.fullmatch(r"[\w-]+", found) else ""


def _root_of(transcript: str) -> str:
    """The project's directory: only there the chat is found. "" when the client did not say."""
    project = os.path.dirname(os.path.dirname(transcript))
    try:
        with open(os.path.join(project, ".project_root"), encoding="utf-8") as file:
            return file.read(os.pathconf("/", "PC_PATH_MAX")).strip()
    except (OSError, ValueError):
        return ""


def _inside(directory: str, below: str, kind: str) -> list[Source]:
    """The files of a directory below another one, called by their path in that."""
    try:
        entries = sorted(os.scandir(os.path.join(directory, below)), key=lambda entry: entry.name)
        return [
            Source(os.path.join(below, entry.name), entry.path, kind)
            for entry in entries
            if entry.is_file(follow_symlinks=False) and entry.name.isprintable()
        ]
    except OSError:
        return []


def adapter(name: str) -> Gemini:
    """The adapter."""
    return Gemini()
