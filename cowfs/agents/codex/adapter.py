"""Codex CLI: a conversation is a *rollout*, a file of JSON lines that only grows.

`$CODEX_HOME/sessions/YYYY/MM/DD/rollout-TIME-ID.jsonl`; each line has `timestamp`, `type`,
`payload`. The id is in the name and in the first line, a `session_meta`. What the model gets are
the `response_item`s; `event_msg` tells what a person sees, and where turns begin and end. A
sub-agent has a rollout of its own, whose first line names the one that started it. So does that of
a fork, which has only what came after: what was before is in the other file, up to an `ordinal`.

Checked with Codex CLI 0.171.0.

Threading: see base.py.
"""

from __future__ import annotations

import glob
import os
import re
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from cowfs.agents.base import MAIN, Conversation, Copy, NotCopyableError, Source, Turn
from cowfs.agents.cutting import entry, last_cut, up_to
from cowfs.agents.lenient import Line, lines, mapping, packed, text, texts, value

_NAME = re.compile(r"rollout-(\d{4})-(\d\d)-(\d\d)T[\d-]+?-([0-9a-f-]{36})\.jsonl")
_ARCHIVE = "archived_sessions"
_MOST_FORKS = 20
_FIRST_BYTES = 4096
"""Of a rollout: who started it stands before the long texts of its first line."""


class Codex:
    """See the module."""

    name = "codex"
    title = "Codex CLI"

    def sources(self, transcript: str) -> list[Source]:
        directory, name = os.path.split(transcript)
        others = [os.path.join(directory, other) for other in _below(directory, name)]
        others += _forked_from(transcript)
        return [
            Source(MAIN, transcript, "lines"),
            *(Source(os.path.basename(path), path, "lines") for path in others),
        ]

    def read(self, files: Mapping[str, bytes]) -> Conversation:
        reader = _Reader()
        for line in lines(_whole(files)):
            reader.take(line)
        return Conversation(
            turns=tuple(reader.turns),
            last_answer=reader.answer,
            leaf=reader.leaf,
            cwd=reader.cwd,
            version=reader.version,
        )

    def complete(self, files: Mapping[str, bytes], last_answer: str) -> bool:
        wanted = last_answer.strip()
        return not wanted or self.read(files).last_answer.strip() == wanted

    def copy(
        self, files: Mapping[str, bytes], *, transcript: str, cwd: str, session: str, leaf: str = ""
    ) -> Copy:
        data = _whole(files)
        wanted = up_to(lines(data), leaf)
        kept, notes = last_cut(wanted, _cuts(wanted), _says)
        new = str(uuid.uuid4())
        if not _is_meta(kept[0].value):
            raise NotCopyableError("it does not begin as a rollout does")
        try:
            first = packed(_renamed(kept[0].value, new))
        except ValueError:
            raise NotCopyableError("its first line holds what JSON has no word for") from None
        return Copy(
            session=new,
            files={_place(transcript, new): first + data[kept[0].end : kept[-1].end]},
            command=self.resume_command(new, cwd),
            cwd=cwd or text(mapping(kept[0].value.get("payload")).get("cwd")),
            notes=notes,
        )

    def resume_command(self, session: str, cwd: str) -> tuple[str, ...]:
        return ("codex", "resume", session)


class _Reader:
    """What the lines say so far."""

    def __init__(self) -> None:
        self.turns: list[Turn] = []
        self.answer = ""
        self.leaf = entry(0)
        self.cwd = ""
        self.version = ""
        self._turn = ("", "")
        self._seen: set[tuple[str, str]] = set()

    def take(self, line: Line) -> None:
        before, self.leaf = self.leaf, entry(line.number)
        payload = mapping(line.value.get("payload"))
        kind = payload.get("type")
        match line.value.get("type"), kind:
            case "session_meta", _:
                self.cwd = self.cwd or text(payload.get("cwd"))
                self.version = self.version or text(payload.get("cli_version"))
            case "event_msg", "task_started":
                self._turn = (text(payload.get("turn_id")), before)
            case "event_msg", "user_message":  # until some version before 0.171
                self._asked(text(payload.get("message")), line, before)
            case "event_msg", "item_completed":
                item = mapping(payload.get("item"))
                if item.get("type") == "UserMessage":
                    self._asked(texts(item.get("content")), line, before)
            case "event_msg", "thread_rolled_back":
                gone = payload.get("num_turns")
                if isinstance(gone, int) and gone > 0:
                    del self.turns[-gone:]
            case "event_msg", "task_complete" | "turn_aborted":
                self._turn = ("", "")
                self.answer = text(payload.get("last_agent_message")) or self.answer
            case "response_item", "message" if payload.get("role") == "assistant":
                self.answer = texts(payload.get("content"), ("output_text",)) or self.answer

    def _asked(self, prompt: str, line: Line, before: str) -> None:
        """Once for each prompt, whatever tells of it. One that comes while the agent is at work has
        no turn of its own."""
        turn, start = self._turn
        if (turn, prompt) in self._seen and turn:
            return
        self._seen.add((turn, prompt))
        self._turn = (turn, "")
        moment = text(line.value.get("timestamp"))
        self.turns.append(Turn(prompt, turn, moment, start or before))


def _cuts(wanted: Sequence[Line]) -> Iterator[int]:
    """After which lines every call has its output, and the model has said something: the end of a
    turn, an answer, an output; and where all before was replaced by something shorter."""
    open_calls: set[str] = set()
    said = False
    for line in wanted:
        payload = mapping(line.value.get("payload"))
        kind = text(payload.get("type"))
        call = text(payload.get("call_id"))
        ends = False
        if line.value.get("type") == "event_msg":
            ends = said and kind in ("task_complete", "turn_aborted")
        elif line.value.get("type") == "compacted":
            open_calls.clear()
            ends = True
        elif line.value.get("type") == "response_item":
            if kind.endswith("_call") and call:
                open_calls.add(call)
            elif kind.endswith("_output"):
                open_calls.discard(call)
                ends = said = True
            elif kind == "message" and payload.get("role") == "assistant":
                ends = said = True
        if ends and not open_calls:
            yield line.number


def _says(line: Line) -> bool:
    """Whether it is of the model, of a tool or of the user, and not of the program."""
    payload = mapping(line.value.get("payload"))
    if line.value.get("type") != "response_item":
        return False
    if payload.get("type") != "message" or payload.get("role") == "assistant":
        return True
    said = texts(payload.get("content"), ("input_text",))
    return payload.get("role") == "user" and not said.startswith("<")


def _is_meta(line: dict[str, Any]) -> bool:
    return line.get("type") == "session_meta"


def _renamed(first: dict[str, Any], new: str) -> dict[str, Any]:
    """The first line with the id of the copy; all other lines stay as they are."""
    payload = mapping(first.get("payload"))
    changed = {name: new for name in ("id", "session_id") if name in payload}
    return {**first, "payload": {**payload, "id": new, **changed}}


def _whole(files: Mapping[str, bytes]) -> bytes:
    """The conversation in one piece: of a fork, what came before it, and what came after."""
    data, seen = files.get(MAIN, b""), {MAIN}
    while fork := _fork(data):
        parent, before = fork
        name = next((name for name in files if name.endswith(f"-{parent}.jsonl")), MAIN)
        if name in seen:
            break
        seen.add(name)
        kept = 0
        for line in lines(files[name]):
            ordinal = line.value.get("ordinal")
            if not isinstance(ordinal, int) or ordinal >= before:
                break
            kept = line.end
        data = files[name][:kept] + data[data.find(b"\n") + 1 :]
    return data


def _fork(data: bytes) -> tuple[str, int] | None:
    """(id of the conversation that a rollout is a fork of, the ordinal of the first line there that
    is no part of it); None when it is none, or has all lines itself, as older ones do."""
    first = mapping(value(data[: data.find(b"\n") + 1]))
    payload = mapping(first.get("payload"))
    parent, before = (
        text(payload.get("forked_from_id")),
        payload.get("forked_from_ordinal_exclusive"),
    )
    if _is_meta(first) and parent and isinstance(before, int):
        return parent, before
    return None


def _place(transcript: str, new: str) -> str:
    """Where the copy goes: beside the original. One that was archived cannot be resumed where it
    lies, so its copy goes to where it was before."""
    directory, name = os.path.split(transcript)
    match = _NAME.fullmatch(name)
    if match is None:
        raise NotCopyableError(f"{name!r} is no name of a rollout")
    if os.path.basename(directory) == _ARCHIVE:
        directory = os.path.join(os.path.dirname(directory), "sessions", *match.groups()[:3])
    stem = name[: -len(match[4]) - len(".jsonl")]
    return os.path.join(directory, f"{stem}{new}.jsonl")


def _below(directory: str, name: str) -> list[str]:
    """Names of the rollouts beside one that it, or one of these, started."""
    try:
        names = sorted(os.listdir(directory))
    except OSError:
        return []
    parents = {}
    for other in names:
        match = _NAME.fullmatch(other)
        if match is not None and other != name:
            parents[other] = _said_first(os.path.join(directory, other), b"parent_thread_id")
    known = {_id_of(name)}
    found: list[str] = []
    while more := [other for other, parent in parents.items() if parent in known]:
        found += more
        for other in more:
            del parents[other]
            known.add(_id_of(other))
    return sorted(found)


def _forked_from(transcript: str) -> list[str]:
    """Paths of the rollouts with what was before a fork."""
    found: list[str] = []
    path = transcript
    while path and len(found) < _MOST_FORKS:
        parent = _said_first(path, b"forked_from_id")
        path = _find(os.path.dirname(transcript), parent) if parent else ""
        if path in (*found, transcript):
            break
        found += [path] if path else []
    return found


def _find(directory: str, name: str) -> str:
    """The path of a rollout by its id: in the same directory, or in one of the same tree."""
    top = os.path.dirname(os.path.dirname(os.path.dirname(directory)))
    for pattern in (glob.escape(directory), os.path.join(glob.escape(top), "*", "*", "*")):
        found = glob.glob(os.path.join(pattern, f"rollout-*-{name}.jsonl"))
        if found:
            return found[0]
    return ""


def _said_first(path: str, key: bytes) -> str:
    """An id that the first line of a rollout has under a key, "" for none."""
    try:
        with open(path, "rb") as file:
            first = file.read(_FIRST_BYTES)
    except OSError:
        return ""
    match = re.search(rb'"%s":\s*"([0-9a-f-]{36})"' % key, first.split(b"\n")[0])
    return match[1].decode() if match is not None else ""


def _id_of(name: str) -> str:
    return name[-len(".jsonl") - 36 : -len(".jsonl")]


def adapter(name: str) -> Codex:
    """The adapter."""
    return Codex()
