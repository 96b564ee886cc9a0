"""What `cowfs show CHECKPOINT --session` says to people."""

from __future__ import annotations

import os
import shlex
from typing import Any

from cowfs.cli import output

_WIDTH = 100
_ACCESS = {os.O_RDONLY: "read", os.O_WRONLY: "write", os.O_RDWR: "read and write"}
_BITS = {os.O_APPEND: "append", os.O_DIRECTORY: "directory", os.O_SYNC: "sync"}


def report(document: dict[str, Any], now: int) -> str:
    """The JSON form as text."""
    point = document["checkpoint"]
    label = f" ({point['label']})" if point["label"] else ""
    message = point["message"].partition("\n")[0]
    head = f"checkpoint {point['id'][:8]}{label}  {output.age(point['time'], now)}  {message}"
    rows = [(name, value) for name, value in _facts(document) if value]
    lines = [head.rstrip(), *(f"  {name:<13} {value}" for name, value in rows)]
    if not document["kept"]:
        lines.append("  nothing is kept with it but the files")
    for title, part in (
        ("processes", _processes(document["processes"])),
        ("open files", [_file(row) for row in document["files"]]),
        ("ports", [f"{_port(row)}  pid {row['pid']}" for row in document["ports"]]),
        ("locks", [_lock(row) for row in document["locks"]]),
        ("environment", [f"{k}={_short(v)}" for k, v in document["environment"].items()]),
        ("left out of the environment", _wrapped(document["hidden"])),
        ("not found out", document["missing"]),
    ):
        if part:
            lines += ["", title, *(f"  {line}" for line in part)]
    return "\n".join(output.printable(line) for line in lines)


def _facts(document: dict[str, Any]) -> list[tuple[str, str]]:
    session, conversation, git = document["session"], document["conversation"], document["git"]
    facts = []
    if session is not None:
        who = " ".join(word for word in (session["agent"], session.get("kind", "")) if word)
        facts.append(("session", f"{session['id']}  {who}, {session['state']}"))
    facts.append(("made at", document["event"]))
    facts.append(("prompt", _short(document["prompt"].partition("\n")[0])))
    if tool := document["tool"]:
        facts.append(("tool", _short(f"{tool['name']}: {tool['text']}".partition("\n")[0])))
    if conversation is not None:
        text = output.plural(conversation["prompts"], "prompt")
        text += f", {output.size(conversation['bytes'])}"
        text += f" in {output.plural(len(conversation['files']), 'file')}"
        text += "" if conversation["complete"] else ", not all of it was written yet"
        facts += [("conversation", text), ("title", conversation["title"])]
    if document["background"]:
        facts.append(("background", output.plural(document["background"], "task") + " going on"))
    facts.append(("directory", document["cwd"]))
    if git["commit"] or git["branch"]:
        facts.append(("git", f"{git['branch'] or 'no branch'} at {git['commit'][:8] or 'nothing'}"))
    return facts


def _processes(rows: list[dict[str, Any]]) -> list[str]:
    """Each below the one that started it."""
    depths: dict[int, int] = {}
    lines = []
    for row in rows:
        depth = depths[row["pid"]] = depths.get(row["parent"], -1) + 1
        command = _short(" ".join(shlex.quote(word) for word in row["command"]))
        lines.append(f"{'  ' * min(depth, 20)}{row['pid']}  {command}")
        if row["cwd"]:
            lines[-1] += f"  in {row['cwd']}"
    return lines


def _file(row: dict[str, Any]) -> str:
    how = [_ACCESS.get(row["flags"] & os.O_ACCMODE, "?")]
    how += [name for bit, name in _BITS.items() if row["flags"] & bit == bit]
    path = row["path"] or f"inode {row['ino']}, which has no name any more"
    where = "mapped" if row["fd"] < 0 else f"at {row['offset']:,}, descriptor {row['fd']}"
    return f"{path}  {where} of pid {row['pid']} ({', '.join(how)})"


def _port(row: dict[str, Any]) -> str:
    address = f"[{row['address']}]" if ":" in row["address"] else row["address"]
    return f"{row['protocol']} {address}:{row['port']}"


def _lock(row: dict[str, Any]) -> str:
    path = row["path"] or f"inode {row['ino']}"
    end = "the end" if row["end"] < 0 else row["end"]
    owner = f"pid {row['pid']}" if row["pid"] > 0 else "nobody that is known"
    return f"{path}  {row['kind']} {row['mode'].lower()}, bytes {row['start']} to {end}, {owner}"


def _short(text: str) -> str:
    return text if len(text) <= _WIDTH else text[: _WIDTH - 1] + "…"


def _wrapped(names: list[str]) -> list[str]:
    """Names, some on each line."""
    lines = [""]
    for name in names:
        if lines[-1] and len(lines[-1]) + len(name) > _WIDTH:
            lines.append("")
        lines[-1] += f" {name}" if lines[-1] else name
    return lines if names else []
