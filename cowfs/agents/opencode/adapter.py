"""OpenCode: it keeps conversations in a database; the plugin (cowfs.js) writes them into files.

`$XDG_STATE_HOME/cowfs/opencode/SESSION.jsonl`, JSON lines that are only added: `{"info": {...}}`,
what the session is; `{"message": {"info": {...}, "parts": [...]}}`, a message, which is written
again when it has changed; `{"removed": ID}`, one that is gone. The last of an id counts. Sub-agents
are sessions of their own, with files in `SESSION/`. What is in `info` and in messages is what
`opencode export` writes, and a copy is a file for `opencode import`: the database itself is
OpenCode's.

Ids are a prefix, 12 hexadecimal digits that sort by time, and 14 random characters, of which a copy
gets new ones. Checked with OpenCode 1.18.33.

Threading: see base.py.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from cowfs.agents.base import MAIN, Conversation, Copy, NotCopyableError, Source, Turn
from cowfs.agents.cutting import LEFT_OUT, NO_ANSWER, entry, up_to
from cowfs.agents.lenient import Line, lines, mapping, packed, sequence, text, texts

_ID = re.compile(r"((?:ses|msg|prt)_[0-9a-f]{12})[0-9A-Za-z]{14}")
_ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_RUNNING = ("pending", "running")
_OF_THE_ORIGINAL = ("parentID", "share", "revert", "permission")
"""What a copy's session does not have: it is a main one, not shared, and ends where it ends."""


class OpenCode:
    """See the module."""

    name = "opencode"
    title = "OpenCode"

    def sources(self, transcript: str) -> list[Source]:
        found = [Source(MAIN, transcript, "lines")]
        below = os.path.basename(transcript).removesuffix(".jsonl")
        directory = os.path.join(os.path.dirname(transcript), below)
        try:
            names = sorted(name for name in os.listdir(directory) if name.endswith(".jsonl"))
        except OSError:
            names = []
        found += [
            Source(os.path.join(below, name), os.path.join(directory, name), "lines")
            for name in names
        ]
        return found

    def read(self, files: Mapping[str, bytes]) -> Conversation:
        found = lines(files.get(MAIN, b""))
        session = _Session(found)
        turns, answer = [], ""
        for name, message in session.messages.items():
            info = mapping(message.get("info"))
            said = _said(message)
            if info.get("role") == "assistant":
                answer = said or answer
            elif info.get("role") == "user" and said:
                turns.append(Turn(said, name, _moment(info), session.leaves[name]))
        return Conversation(
            title=text(session.info.get("title")),
            turns=tuple(turns),
            last_answer=answer,
            leaf=entry(len(found)),
            cwd=text(session.info.get("directory")),
            version=text(session.info.get("version")),
        )

    def complete(self, files: Mapping[str, bytes], last_answer: str) -> bool:
        return True

    def copy(
        self, files: Mapping[str, bytes], *, transcript: str, cwd: str, session: str, leaf: str = ""
    ) -> Copy:
        found = _Session(up_to(lines(files.get(MAIN, b"")), leaf))
        messages = list(found.messages.values())
        kept = _settled(messages)
        if not kept or _ID.fullmatch(text(found.info.get("id"))) is None:
            raise NotCopyableError(NO_ANSWER)
        info = {key: part for key, part in found.info.items() if key not in _OF_THE_ORIGINAL}
        names = _new_names(info, kept)
        new = names[info["id"]]
        path = os.path.join(os.path.dirname(transcript), f"{new}.import.json")
        try:
            body = packed(_renamed({"info": info, "messages": kept}, names))
        except (ValueError, RecursionError):
            raise NotCopyableError("it holds what JSON has no word for") from None
        return Copy(
            session=new,
            files={path: body},
            command=self.resume_command(new, cwd),
            cwd=cwd or text(info.get("directory")),
            before=(("opencode", "import", path),),
            notes=(LEFT_OUT,) if len(kept) < len(messages) else (),
        )

    def resume_command(self, session: str, cwd: str) -> tuple[str, ...]:
        return ("opencode", "--session", session)


class _Session:
    """What the lines say. messages: id to message, as far as they are part of it, in order of their
    ids; leaves: id of a message to the entry before its first line."""

    def __init__(self, found: Iterable[Line]) -> None:
        self.info: dict[str, Any] = {}
        self.leaves: dict[str, str] = {}
        messages: dict[str, dict[str, Any]] = {}
        for line in found:
            self.info = mapping(line.value.get("info")) or self.info
            message = mapping(line.value.get("message"))
            name = text(mapping(message.get("info")).get("id"))
            if name:
                messages[name] = message
                self.leaves.setdefault(name, entry(line.number - 1))
            messages.pop(text(line.value.get("removed")), None)
        gone = text(mapping(self.info.get("revert")).get("messageID"))
        self.messages = {
            name: messages[name] for name in sorted(messages) if not gone or name < gone
        }


def _said(message: dict[str, Any]) -> str:
    """The text of a message, without what the program put there itself."""
    parts = [
        part
        for part in map(mapping, sequence(message.get("parts")))
        if not part.get("synthetic") and not part.get("ignored")
    ]
    return texts(parts)


def _moment(info: dict[str, Any]) -> str:
    created: Any = mapping(info.get("time")).get("created")
    try:
        return datetime.fromtimestamp(created / 1000, UTC).isoformat()
    except (TypeError, ValueError, OverflowError, OSError):
        return ""


def _settled(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages up to the last one of the model that it has finished, with the result of all
    that it called."""
    end = 0
    for number, message in enumerate(messages, 1):
        info = mapping(message.get("info"))
        states = [
            mapping(mapping(part).get("state")).get("status")
            for part in sequence(message.get("parts"))
            if mapping(part).get("type") == "tool"
        ]
        if info.get("role") != "assistant":
            continue
        if any(state in _RUNNING for state in states):
            break
        if mapping(info.get("time")).get("completed"):
            end = number
    return messages[:end]


def _new_names(info: dict[str, Any], messages: list[dict[str, Any]]) -> dict[str, str]:
    """A new id for the session, for each message and for each of its parts. They sort as the old
    ones do, also those of the same moment."""
    holders = [info]
    for message in messages:
        holders += [mapping(message.get("info")), *map(mapping, sequence(message.get("parts")))]
    olds = {text(holder.get("id")) for holder in holders}
    moments: dict[str, list[str]] = {}
    for match in filter(None, map(_ID.fullmatch, sorted(olds))):
        moments.setdefault(match[1], []).append(match[0])
    names: dict[str, str] = {}
    for moment, same in moments.items():
        ends: set[str] = set()
        while len(ends) < len(same):
            ends.add("".join(_ALPHABET[byte % len(_ALPHABET)] for byte in secrets.token_bytes(14)))
        names.update(zip(same, (moment + end for end in sorted(ends)), strict=True))
    return names


def _renamed(found: Any, names: dict[str, str]) -> Any:
    """The same with new ids wherever an old one stands by itself."""
    if isinstance(found, str):
        return names.get(found, found)
    if isinstance(found, list):
        return [_renamed(part, names) for part in found]
    if isinstance(found, dict):
        return {key: _renamed(part, names) for key, part in found.items()}
    return found


def adapter(name: str) -> OpenCode:
    """The adapter."""
    return OpenCode()
