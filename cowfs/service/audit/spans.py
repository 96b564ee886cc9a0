"""What lies between two bounds: checkpoints, or times.

Threading: as the workspace.
"""

from __future__ import annotations

from dataclasses import dataclass

from cowfs.service.finding.selection import Bound, bound_of
from cowfs.service.selectors import all_checkpoints
from cowfs.service.workspace import ReadOnly


@dataclass(frozen=True, slots=True)
class Span:
    """Operations of epochs above `after` and up to `until` (None: all), of the times (ns since
    1970) from `first` to `last`; None for no limit."""

    after: int = -1
    until: int | None = None
    first: int | None = None
    last: int | None = None

    @property
    def is_timed(self) -> bool:
        """Whether one epoch may lie partly within."""
        return self.first is not None or self.last is not None

    def has(self, moment: int) -> bool:
        """Whether a time is within."""
        return (self.first is None or moment >= self.first) and (
            self.last is None or moment <= self.last
        )


def span_of(workspace: ReadOnly, since: str | None, until: str | None, now_ns: int) -> Span:
    """What was done after and before these: each a checkpoint, or a time as of `bound_of`; None for
    no limit. Raises UnknownCheckpointError, AmbiguousCheckpointError."""
    begin = bound_of(workspace, since, now_ns, earliest=True) if since is not None else Bound()
    end = bound_of(workspace, until, now_ns, earliest=False) if until is not None else Bound()
    after = begin.epoch
    if after is None:
        after = _before(workspace, begin.time) if begin.time is not None else -1
    return Span(after, end.epoch, begin.time, end.time)


def _before(workspace: ReadOnly, moment: int) -> int:
    """The last epoch that was sealed before a time, -1 for none: nothing up to it is younger."""
    checkpoints = all_checkpoints(workspace.reader, lambda damaged: None)
    return max((record.epoch for record in checkpoints if record.time < moment), default=-1)
