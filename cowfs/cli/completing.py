"""What a shell offers when the name of a checkpoint or of a session is typed."""

from __future__ import annotations

from pathlib import Path

from cowfs.cli import output
from cowfs.cli.context import Context
from cowfs.errors import CowfsError


def checkpoint_names(context: Context, incomplete: str) -> list[tuple[str, str]]:
    """(name, what it is) of the checkpoints whose label or id starts so, newest first.

    The store is read as it was last committed: a daemon is not asked, so that typing waits for
    nothing. No workspace, no names.
    """
    import time

    from cowfs.service.selectors import all_checkpoints
    from cowfs.service.workspace import reading

    try:
        place = context.locate()
        with reading(Path(place.store), None) as workspace:
            found = all_checkpoints(workspace.reader, lambda _: None)
    except (CowfsError, OSError):
        return []
    now = time.time_ns()
    names = []
    for record in reversed(found):
        about = f"{output.age(record.time, now)} {record.message or record.kind}"
        about = output.printable(about.partition("\n")[0])
        names += [
            (name, about)
            for name in (record.label, record.id[:8])
            if name and name.startswith(incomplete)
        ]
    return names


def session_names(context: Context, incomplete: str) -> list[tuple[str, str]]:
    """(id, what it is) of the sessions whose id starts so, the one that was heard of last first;
    and `last`. The store is read as for checkpoints."""
    import time

    from cowfs.service.sessions.listing import LAST, listed
    from cowfs.service.workspace import reading

    try:
        place = context.locate()
        with reading(Path(place.store), None) as workspace:
            found = listed(workspace.reader)
    except (CowfsError, OSError):
        return []
    now = time.time_ns()
    names = [(LAST, "the one that was heard of last")] if found else []
    for row in found:
        what = row.record.title or row.record.prompt.partition("\n")[0]
        about = f"{row.state}, {output.age(row.record.last, now)} {what}".rstrip()
        names.append((row.record.id, output.printable(about)))
    return [(name, about) for name, about in names if name.startswith(incomplete)]
