"""What a copy of a conversation must be, checked without the code that makes it."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from cowfs.agents.base import Copy

Entry = dict[str, Any]
ORIGINALS_OWN = ("file-history-", "api-request", "queue-operation", "last-prompt", "cost-state")
MAY_CHANGE = {"sessionId", "forkedFrom", "parentUuid", "teamName", "agentName", "slug"}


def objects(data: bytes) -> list[Entry]:
    """The objects that a file's lines hold."""
    found = []
    for line in data.split(b"\n"):
        try:
            value = json.loads(line)
        except ValueError:
            continue
        if isinstance(value, dict):
            found.append(value)
    return found


def entries(data: bytes) -> list[Entry]:
    """The entries of the conversation itself, in the file's order."""
    return [
        line
        for line in objects(data)
        if isinstance(line.get("uuid"), str)
        and "parentUuid" in line
        and line.get("isSidechain") is not True
    ]


def blocks(entry: Entry) -> list[Any]:
    content = entry.get("message", {}).get("content")
    return content if isinstance(content, list) else [{"type": "text", "text": content}]


def calls(entry: Entry) -> set[str]:
    return {b["id"] for b in blocks(entry) if b["type"] == "tool_use"}


def results(entry: Entry) -> set[str]:
    return {b["tool_use_id"] for b in blocks(entry) if b["type"] == "tool_result"}


def longest(whole: Sequence[Entry], leaf: str = "") -> int:
    """How many of the first entries a copy has to have; 0 when there can be none."""
    names = [entry["uuid"] for entry in whole]
    end = names.index(leaf) + 1 if leaf else len(names)
    return max((n for n in range(1, end + 1) if may_end(whole, n)), default=0)


def may_end(whole: Sequence[Entry], length: int) -> bool:
    """Whether the first entries of a file can be gone on from."""
    part, names = whole[:length], {entry["uuid"] for entry in whole[:length]}
    said = [entry for entry in part if entry["type"] in ("user", "assistant")]
    if not any(e["type"] == "assistant" or not is_from_program(e) for e in said):
        return False
    if any(entry["parentUuid"] in {e["uuid"] for e in whole} - names for entry in part):
        return False
    if said[-1]["type"] == "assistant" and {b["type"] for b in blocks(said[-1])} <= {"thinking"}:
        return False
    boundaries = [n for n, e in enumerate(part) if e.get("subtype") == "compact_boundary"]
    if boundaries and not any(e in said for e in part[boundaries[-1] :]):
        return False
    given = set().union(*map(results, part))
    return all(
        name in given or was_given_up(whole, part, number, name)
        for number, entry in enumerate(part)
        for name in calls(entry)
    )


def is_from_program(entry: Entry) -> bool:
    return bool(entry.get("isMeta") or entry.get("isCompactSummary"))


def was_given_up(whole: Sequence[Entry], part: Sequence[Entry], number: int, name: str) -> bool:
    """Whether a call has no result in the file at all, and the conversation went on without."""
    if any(name in results(entry) for entry in whole):
        return False
    message = part[number]["message"]["id"]
    return any(
        entry["message"]["id"] != message if entry["type"] == "assistant" else is_prompt(entry)
        for entry in part[number + 1 :]
        if entry["type"] in ("user", "assistant")
    )


def is_prompt(entry: Entry) -> bool:
    return bool(not is_from_program(entry) and not results(entry))


def check(copy: Copy, files: Mapping[str, bytes], session: str, leaf: str = "") -> None:
    """Compare a copy with its original, whose files are given."""
    new = copy.session
    assert str(uuid.UUID(new)) == new != session
    (main,) = [path for path in copy.files if os.path.basename(path) == f"{new}.jsonl"]
    others = {path: data for path, data in copy.files.items() if path != main}
    assert copy.command == ("claude", "--resume", new)
    _check_main(copy.files[main], files["main"], session, new, leaf)
    for path, data in others.items():
        name = path.removeprefix(main.removesuffix(".jsonl") + "/")
        _check_beside(data, files[name], new)


def _check_main(copy: bytes, original: bytes, session: str, new: str, leaf: str) -> None:
    assert copy.endswith(b"}\n")
    for raw in copy.split(b"\n")[:-1]:
        assert json.loads(raw).get("sessionId", new) == new
    whole, made = entries(original), entries(copy)
    assert [e["uuid"] for e in made] == [e["uuid"] for e in whole[: longest(whole, leaf)]]
    names = {entry["uuid"] for entry in made}
    for before, after in zip(whole, made, strict=False):
        assert after["forkedFrom"] == {"sessionId": session, "messageUuid": before["uuid"]}
        assert after["parentUuid"] is None or after["parentUuid"] in names
        if before["parentUuid"] in names or before["parentUuid"] is None:
            assert after["parentUuid"] == before["parentUuid"]
        same = [name for name in before if name not in MAY_CHANGE]
        assert [name for name in after if name not in MAY_CHANGE] == same
        assert all(after[name] == before[name] for name in same)
    assert objects(copy)[0].get("isSidechain") is not True
    assert made[0]["parentUuid"] is None or made[0]["parentUuid"] in names
    for line in objects(copy):
        assert not line["type"].startswith(ORIGINALS_OWN)
        assert line["type"] != "summary" or line["leafUuid"] in names
        assert line.get("isSidechain") is not True


def _check_beside(copy: bytes, original: bytes, new: str) -> None:
    for old, fresh in zip(original.split(b"\n"), copy.split(b"\n"), strict=True):
        if old != fresh:
            was, is_now = json.loads(old), json.loads(fresh)
            assert list(is_now) == list(was)
            assert is_now == {**was, "sessionId": new}
