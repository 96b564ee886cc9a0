"""Plain data and records as results: answers of the daemon (docs/protocol.md), rows, changes.

Threading: pure functions; of what belongs to an open workspace, for its thread.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from cowfs.api.results import (
    Activity,
    Change,
    Checkpoint,
    Context,
    Counts,
    File,
    Process,
    Restored,
    Session,
    Status,
    Unmounted,
)
from cowfs.client.places import Place

if TYPE_CHECKING:
    import msgspec

    from cowfs.format.sessions import ContextRecord
    from cowfs.service.audit.stories import Story
    from cowfs.service.diff import Change as Difference
    from cowfs.service.sessions.listing import Listed
    from cowfs.service.textdiff import Stat


def counts(row: Mapping[str, Any]) -> Counts:
    """Of the JSON form of counts."""
    return Counts(row["created"], row["modified"], row["deleted"])


def checkpoint(
    row: Mapping[str, Any], *, made: bool = False, parent: str | None = None
) -> Checkpoint:
    """Of the JSON form of a checkpoint."""
    return Checkpoint(
        id=row["id"],
        epoch=row["epoch"],
        kind=row["kind"],
        time=row["time"],
        message=row["message"],
        label=row["label"],
        user=row["user"],
        uid=row["uid"],
        pid=row["pid"],
        command=row["command"],
        session=row.get("session", ""),
        target=row["target"],
        counts=counts(row["counts"]),
        git_commit=row["git"]["commit"],
        git_branch=row["git"]["branch"],
        pinned=row["pinned"],
        note=row["note"],
        thinned=tuple(row.get("thinned", ())),
        parent=parent,
        made=made,
    )


def restored(row: Mapping[str, Any]) -> Restored:
    """Of the answer of `restore`, `undo` and `redo`."""
    return Restored(
        row["operation"],
        checkpoint(row["checkpoint"]),
        checkpoint(row["rescue"]),
        row["changed"],
        tuple(row["left_alone"]),
    )


def _file(row: Mapping[str, Any] | None) -> File | None:
    if row is None:
        return None
    return File(
        row["type"],
        int(row["mode"], 8),
        row["uid"],
        row["gid"],
        row["size"],
        row["mtime"],
        row.get("target", ""),
    )


def change(found: Difference, stat: Stat | None = None) -> Change:
    """A difference; with its lines, if they were counted."""
    row = found.to_json()
    return Change(
        status=row["status"],
        path=row["path"],
        old_path=row["old_path"],
        old=_file(row["old"]),
        new=_file(row["new"]),
        modified=row["modified"],
        attributes=tuple(row["attributes"]),
        link_of=row["link_of"],
        added=stat.added if stat else None,
        removed=stat.removed if stat else None,
    )


def activity(story: Story) -> Activity:
    """A story of the audit log."""
    row = story.to_json()
    who = row["process"]
    return Activity(
        time=row["time"],
        until=row["until"],
        process=Process(
            kind=who["kind"],
            pid=who["pid"],
            name=who["name"],
            command=tuple(who["command"]),
            user=who["user"],
            uid=who["uid"],
            started=who["started"],
            session=who.get("session", ""),
            tool=who.get("tool", ""),
        ),
        operation=row["operation"],
        text=row["text"],
        files=row["files"],
        directories=row["directories"],
        bytes=row["bytes"],
        below=row["below"] or ".",
        paths=tuple((pair["path"], pair["to"]) for pair in row["paths"]),
        checkpoint=row["checkpoint"],
        outside=row["outside"],
    )


def status(place: Place, row: Mapping[str, Any], *, mounted: bool) -> Status:
    """Of the answer of `status`, or of what the store says."""
    placed = {
        "mounted": mounted,
        "workspace": place.base,
        "mountpoint": place.mountpoint,
        "store": place.store,
    }
    last = row["last_checkpoint"]
    return Status(
        mounted=mounted,
        base=place.base,
        mountpoint=place.mountpoint,
        store=place.store,
        pid=row["pid"],
        branch=row["branch"],
        last_checkpoint=checkpoint(last) if last else None,
        counts=counts(row["changes"]),
        health=row["health"]["state"],
        problems=tuple(_problem(problem) for problem in row["health"]["problems"]),
        state=row["state"],
        details={**placed, **row},
    )


def _problem(row: Mapping[str, Any]) -> str:
    where = f" {row['path']}" if row.get("path") else ""
    return f"{row['kind']}:{where} {row['detail']}"


_APPLIED = ("created", "written", "deleted", "moved", "attributes")


def unmounted(applied: Mapping[str, Any] | None, lost: str = "") -> Unmounted:
    """Of the answer of `unmount`."""
    if applied is None:
        return Unmounted(None, (), lost)
    problems = tuple((p.get("path", ""), p.get("detail", "")) for p in applied["problems"])
    return Unmounted({name: applied[name] for name in _APPLIED}, problems, lost)


def sessions(found: Iterable[Listed]) -> Iterator[Session]:
    """Each, followed by its sub-agents."""
    for one in found:
        row = one.to_json()
        yield Session(**{name: row[name] for name in Session.__slots__})
        yield from sessions(one.subagents)


def context(record: ContextRecord) -> Context:
    """What a checkpoint keeps besides the files."""
    return Context(
        session=record.session,
        event=record.event,
        prompt=record.prompt,
        tool=record.tool.name,
        tool_text=record.tool.text,
        cwd=os.fsdecode(record.cwd),
        environment=dict(record.environment),
        hidden=record.hidden,
        processes=_rows(record.processes),
        files=_rows(record.files),
        ports=_rows(record.ports),
        locks=_rows(record.locks),
        complete=record.complete,
        missing=record.missing,
    )


def _rows(found: Iterable[msgspec.Struct]) -> tuple[Mapping[str, Any], ...]:
    """Records as plain data; commands as lists of arguments."""
    from cowfs.format import records

    return tuple(
        {name: _plain(name, value) for name, value in records.to_dict(record).items()}
        for record in found
    )


def _plain(name: str, value: Any) -> Any:
    if name == "command" and isinstance(value, bytes):
        return [os.fsdecode(word) for word in value.rstrip(b"\0").split(b"\0")] if value else []
    return os.fsdecode(value) if isinstance(value, bytes) else value
