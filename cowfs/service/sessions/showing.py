"""All that a checkpoint knows besides the files, for people and programs.

Threading: pure functions on a reader of the calling thread.
"""

from __future__ import annotations

import os
from typing import Any

from cowfs import agents
from cowfs.agents.base import Turn
from cowfs.errors import DamagedRecordError
from cowfs.format import records
from cowfs.format.records import CheckpointRecord
from cowfs.format.sessions import ContextRecord, family
from cowfs.service.sessions import reading
from cowfs.store.snapshot import Reader


def shown(reader: Reader, checkpoint: CheckpointRecord) -> dict[str, Any]:
    """The JSON form of `cowfs show CHECKPOINT --session`. Raises DamagedRecordError when the
    context itself cannot be read; what else cannot is in `missing`."""
    there = "context" in reader.store.tables
    context = reading.context(reader, checkpoint.id) if there else None
    missing: list[str] = []
    session = _session(reader, checkpoint, missing) if there else None
    document: dict[str, Any] = {
        "checkpoint": records.to_dict(checkpoint),
        "session": session,
        "git": records.to_dict(checkpoint.git),
        "kept": context is not None,
    }
    found = context or ContextRecord()
    document |= {
        "event": found.event,
        "prompt": found.prompt,
        "prompt_id": found.prompt_id,
        "tool": _fields(found.tool) if found.tool.name else None,
        "background": found.background,
        "cwd": os.fsdecode(found.cwd),
        "conversation": _conversation(reader, found, session, missing),
        "environment": dict(found.environment),
        "hidden": list(found.hidden),
        "processes": [
            {**_fields(process), "command": _words(process.command)} for process in found.processes
        ],
        "files": [_fields(file) for file in found.files],
        "ports": [_fields(port) for port in found.ports],
        "locks": [_fields(lock) for lock in found.locks],
        "missing": [*found.missing, *missing],
    }
    return document


def _session(
    reader: Reader, checkpoint: CheckpointRecord, missing: list[str]
) -> dict[str, Any] | None:
    """The session that it was made in, as it is now."""
    if not checkpoint.session:
        return None
    try:
        found = reading.session(reader, checkpoint.session)
        top = family(checkpoint.session)
        above = reading.session(reader, top) if top != checkpoint.session else None
    except DamagedRecordError as error:
        missing.append(f"the session: {error}")
        found = above = None
    if found is None:
        return {"id": checkpoint.session, "agent": "", "state": "unknown"}
    fields = _fields(found)
    del fields["files"]
    return {**fields, "state": reading.state(found, above)}


def _conversation(
    reader: Reader, context: ContextRecord, session: dict[str, Any] | None, missing: list[str]
) -> dict[str, Any] | None:
    """How far the conversation was, and what it says of itself; None when none is kept."""
    if not context.marks:
        return None
    files, told = [], agents.get("generic").read({})
    for mark in context.marks:
        try:
            record = reading.transcript(reader, mark.transcript)
        except DamagedRecordError as error:
            record = None
            missing.append(f"a part of the conversation: {error}")
        name = record.name if record is not None else ""
        path = os.fsdecode(record.path) if record is not None else ""
        files.append({"name": name, "path": path, "bytes": mark.length})
    try:
        agent = agents.get(session["agent"] if session and session["agent"] else "generic")
        told = agent.read(reading.conversation(reader, context))
    except DamagedRecordError as error:
        missing.append(f"the conversation: {error}")
    return {
        "title": told.title,
        "prompts": _prompts(told.turns, context.leaf),
        "bytes": sum(mark.length for mark in context.marks),
        "files": files,
        "complete": context.complete,
        "leaf": context.leaf,
    }


def _prompts(turns: tuple[Turn, ...], leaf: str) -> int:
    """How many there are up to the leaf, if that is given."""
    after = (number for number, turn in enumerate(turns) if leaf and turn.leaf == leaf)
    return next(after, len(turns))


def _fields(record: Any) -> dict[str, Any]:
    """The fields of a record; bytes are paths."""
    fields = {name: getattr(record, name) for name in record.__struct_fields__}
    return {n: os.fsdecode(v) if isinstance(v, bytes) else v for n, v in fields.items()}


def _words(command: bytes) -> list[str]:
    return [os.fsdecode(word) for word in command.rstrip(b"\0").split(b"\0")] if command else []
