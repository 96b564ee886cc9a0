"""What a user asked in a session, and what became of it: for going back to before a prompt.

Threading: as the workspace.
"""

from __future__ import annotations

from dataclasses import dataclass

from cowfs.agents.events import PROMPT
from cowfs.errors import CowfsError
from cowfs.format.records import CheckpointRecord
from cowfs.service.diff import count, diff
from cowfs.service.selectors import Point
from cowfs.service.sessions import reading
from cowfs.service.sessions.listing import checkpoints_of
from cowfs.service.workspace import ReadOnly


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt of a user. point: the checkpoint before it. text: all of it. counts: what changed
    until the next prompt or, after the last one, until now, as of `count` (service/diff.py); None
    when that cannot be told any more."""

    point: CheckpointRecord
    text: str
    counts: dict[str, int] | None

    @property
    def numbers(self) -> str:
        """ "+1 ~2 -0": added, otherwise changed, deleted."""
        if self.counts is None:
            return "?"
        added, deleted = self.counts["added"], self.counts["deleted"]
        return f"+{added} ~{sum(self.counts.values()) - added - deleted} -{deleted}"


def prompts(workspace: ReadOnly, session: str, most: int) -> tuple[list[Prompt], bool]:
    """The last prompts of a session, the newest first, and whether there are more."""
    reader, after = workspace.reader, workspace.point("@")
    found: list[Prompt] = []
    for point in checkpoints_of(reader, session):
        if point.kind != "prompt" or point.session != session:
            continue
        context = reading.context(reader, point.id)
        if context is None or context.event != PROMPT:
            continue
        if len(found) == most:
            return found, True
        before = Point(point.id, reader.lineage(point.epoch), point)
        found.append(
            Prompt(point, context.prompt or point.message, _counts(workspace, before, after))
        )
        after = before
    return found, False


def _counts(workspace: ReadOnly, before: Point, after: Point) -> dict[str, int] | None:
    try:
        return count(diff(workspace, before, after))
    except CowfsError:  # damaged, or its content is lost
        return None
