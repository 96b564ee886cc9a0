"""Which checkpoints a policy keeps, and why.

Threading: pure.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo

from cowfs.format.records import CheckpointRecord
from cowfs.service.config import Retention
from cowfs.service.selectors import UNASKED

_DAY = 86_400_000_000_000
RESCUE = "rescue"
PROMPT = "prompt"


@dataclass(frozen=True, slots=True)
class Decision:
    """What becomes of a checkpoint. reason: why, for people."""

    checkpoint: CheckpointRecord
    keep: bool
    reason: str


def decide(
    checkpoints: Collection[CheckpointRecord],
    rules: Retention,
    now_ns: int,
    stacks: Collection[str] = (),
    zone: tzinfo = UTC,
) -> list[Decision]:
    """What becomes of each checkpoint, oldest first.

    stacks: ids of those that an undo or a redo would go to; they count as rescue checkpoints. zone:
    in which hours and days begin. Days are counted back from the newest checkpoint, not from now:
    nothing is removed because a workspace was not used, or a clock jumped meanwhile. What seems to
    be from the future is kept, and the newest always. Without any rule everything is kept. Prompts
    are ordinary, and counted among themselves, too: what an agent does on the way does not push
    them out.
    """
    ordered = sorted(checkpoints, key=lambda record: (record.epoch, record.time))
    reasons = dict[str, str]()
    for record in ordered:
        if reason := spared(record, now_ns):
            reasons[record.id] = reason
    if ordered:
        reasons.setdefault(ordered[-1].id, "the newest")
    past = [record for record in ordered if record.time <= now_ns]
    last = max((record.time for record in past), default=now_ns)
    ordinary = [r for r in past if r.kind != RESCUE and r.id not in stacks]
    rescues = [r for r in past if r.kind == RESCUE or r.id in stacks]
    for record in rescues:
        if record.time > last - rules.keep_rescue * _DAY:
            reasons.setdefault(record.id, f"a rescue of the last {rules.keep_rescue} days")
    bucketed = _buckets(rules, zone)
    if not (bucketed or rules.keep_last or rules.keep_days):
        for record in ordinary:
            reasons.setdefault(record.id, "there is no rule")
    prompts = [record for record in ordinary if record.kind == PROMPT]
    for found, word in ((ordinary, ""), (prompts, " prompts")):
        for record in found[max(len(found) - rules.keep_last, 0) :]:
            reasons.setdefault(record.id, f"one of the last {rules.keep_last}{word}")
    for record in ordinary:
        if record.time > last - rules.keep_days * _DAY:
            reasons.setdefault(record.id, f"of the last {rules.keep_days} days")
    for count, word, bucket in bucketed:
        seen = set[str]()
        for record in reversed(ordinary):
            if (name := bucket(record.time)) not in seen and len(seen) < count:
                seen.add(name)
                reasons.setdefault(record.id, f"the last one of its {word}")
    return [
        Decision(record, record.id in reasons, reasons.get(record.id) or _why(record, rules))
        for record in ordered
    ]


def spared(record: CheckpointRecord, now_ns: int) -> str:
    """Why no rule may remove a checkpoint, "" when one may."""
    if not record.epoch:
        return "the state before the first mount"
    if record.pinned:
        return f"pinned: {record.note}" if record.note else "pinned"
    if record.label:
        return f"labelled {record.label}"
    return "it seems to be from the future" if record.time > now_ns else ""


def oldest_first(checkpoints: Collection[CheckpointRecord]) -> list[CheckpointRecord]:
    """Those that may be removed to make room, in this order; never the newest. Those that nobody
    asked for go first."""
    ordered = sorted(checkpoints, key=lambda record: record.epoch)
    found = [record for record in ordered[:-1] if not spared(record, 1 << 63)]
    return sorted(found, key=lambda record: record.kind not in UNASKED)


def thinnable(
    checkpoints: Collection[CheckpointRecord],
    stacks: Collection[str],
    now_ns: int,
    keep_days: int,
) -> list[CheckpointRecord]:
    """The checkpoints that need not have the contents of volatile paths any more, in the order in
    which these go to make room.

    keep_days: those of so many days need them, counted as in `decide`; 0 for none. Never those
    that no rule may remove, the newest, and what an undo or a redo would go to.
    """
    last = max((record.time for record in checkpoints if record.time <= now_ns), default=now_ns)
    since = last - keep_days * _DAY if keep_days else last + 1
    return [
        record
        for record in oldest_first(checkpoints)
        if record.time <= min(since, now_ns) and record.kind != RESCUE and record.id not in stacks
    ]


def _why(record: CheckpointRecord, rules: Retention) -> str:
    if record.kind == RESCUE:
        return f"a rescue, older than {rules.keep_rescue} days"
    return "no rule keeps it"


def _buckets(rules: Retention, zone: tzinfo) -> Sequence[tuple[int, str, Callable[[int], str]]]:
    def named(form: str) -> Callable[[int], str]:
        return lambda time: datetime.fromtimestamp(time // 1_000_000_000, zone).strftime(form)

    found = [
        (rules.keep_hourly, "hour", named("%Y-%m-%d %H %z")),
        (rules.keep_daily, "day", named("%Y-%m-%d")),
        (rules.keep_weekly, "week", named("%G-%V")),
    ]
    return [row for row in found if row[0]]
