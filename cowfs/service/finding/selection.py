"""Which checkpoints are meant: by message and label, kind, time, session.

Threading: pure functions on readers of the calling thread.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from cowfs.errors import UnknownCheckpointError, UsageError
from cowfs.format import records
from cowfs.format.sessions import family
from cowfs.service.selectors import NO_TIME, parse_time
from cowfs.service.workspace import ReadOnly

_MINUTE = 60_000_000_000
_SECOND = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Bound:
    """A limit, itself within: a time (ns since 1970) or the epoch of a checkpoint."""

    time: int | None = None
    epoch: int | None = None


@dataclass(frozen=True, slots=True)
class Selection:
    """pattern: searched in messages and labels. kinds: none for all. since, until: limits. session:
    id of one, whose sub-agents are meant, too; "" for all."""

    pattern: re.Pattern[str] | None = None
    kinds: tuple[str, ...] = ()
    since: Bound = Bound()
    until: Bound = Bound()
    session: str = ""

    @property
    def is_all(self) -> bool:
        """Whether nothing is left out."""
        return self == Selection()

    def has(self, record: records.CheckpointRecord) -> bool:
        """Whether a checkpoint is meant."""
        if self.kinds and record.kind not in self.kinds:
            return False
        if self.session and self.session not in (record.session, family(record.session)):
            return False
        if self.since.time is not None and record.time < self.since.time:
            return False
        if self.since.epoch is not None and record.epoch < self.since.epoch:
            return False
        if self.until.time is not None and record.time > self.until.time:
            return False
        if self.until.epoch is not None and record.epoch > self.until.epoch:
            return False
        found = self.pattern
        return found is None or bool(found.search(record.message) or found.search(record.label))


def pattern_of(text: str, *, ignore_case: bool) -> re.Pattern[str]:
    """A regular expression of the command line. Raises UsageError."""
    try:
        return re.compile(text, re.IGNORECASE if ignore_case else 0)
    except re.error as error:
        detail = f"{text!r} is not a regular expression: {error}"
        raise UsageError(detail=detail, command="log") from None


def bound_of(workspace: ReadOnly, text: str, now_ns: int, *, earliest: bool) -> Bound:
    """A checkpoint, or a time ("2 h ago", "14:30", a date) if there is no such checkpoint: a label
    may look like a time. earliest: the first moment that a time can mean, else the last one. Raises
    UnknownCheckpointError, AmbiguousCheckpointError."""
    try:
        return Bound(epoch=workspace.point(text).lineage.head)
    except UnknownCheckpointError:
        moment = parse_time(text, now_ns)
        if moment is None:
            if text.startswith("@"):
                raise
            raise UnknownCheckpointError(selector=text, why=f", and {NO_TIME}") from None
    if earliest and re.search(r"\d", text) and "ago" not in text:
        moment -= moment % (_MINUTE if re.fullmatch(r".*\d{1,2}:\d{2}", text.strip()) else _SECOND)
    return Bound(time=moment)
