"""Naming a state: ids, prefixes, labels, `@`, `@~N`, `@{TIME}`.

Order: `@` forms first, then an exact label, then an id or unique prefix of at least 4 digits.

Threading: pure functions on a reader of the calling thread.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from cowfs.errors import AmbiguousCheckpointError, DamagedRecordError, UnknownCheckpointError
from cowfs.format import keys, records
from cowfs.store.lineage import Lineage
from cowfs.store.snapshot import Reader

_AGO = re.compile(r"(\d{1,15}|an?)\s*([a-z]+?)s?(?:\s+ago)?")
_UNITS = {
    "s": "seconds",
    "sec": "seconds",
    "second": "seconds",
    "m": "minutes",
    "min": "minutes",
    "minute": "minutes",
    "h": "hours",
    "hour": "hours",
    "d": "days",
    "day": "days",
    "w": "weeks",
    "week": "weeks",
}
NO_TIME = "it is no time such as 10 minutes ago, 2 h ago, yesterday, 14:30, 2026-11-29 14:00"
"""What is said of a text that `parse_time` does not understand."""
_FORMATS = (
    "%Y-%m-%d %H:%M:%S",
    "%Y-%m-%d %H:%M",
    "%Y-%m-%dT%H:%M:%S",
    "%Y-%m-%dT%H:%M",
    "%Y-%m-%d",
)


AUTOMATIC = "auto"
"""The kind of the checkpoints that the daemon makes by itself (daemon/autosaver.py)."""
UNASKED = (AUTOMATIC, "tool", "agent", "turn")
"""The kinds of all that come while an agent works (service/sessions/recording.py) or by themselves:
nobody thinks of them. Before a prompt somebody has typed something."""
KINDS = ("start", "manual", "rescue", "apply", "external", "prompt", *UNASKED)
"""All kinds of checkpoints."""
_MOST_MISSING = 10_000
_LONGEST_NAME = 500
"""Bytes; no key of the store is longer (511, LMDB)."""


@dataclass(frozen=True, slots=True)
class Point:
    """A state of the workspace: a checkpoint, or the head when `checkpoint` is None."""

    selector: str
    lineage: Lineage
    checkpoint: records.CheckpointRecord | None

    @property
    def name(self) -> str:
        """How messages call it."""
        return self.checkpoint.id[:8] if self.checkpoint else "@"


def all_checkpoints(
    reader: Reader, damaged: Callable[[str], None] | None = None
) -> list[records.CheckpointRecord]:
    """Every checkpoint, oldest first: by epoch, since a clock may have gone back.

    damaged: told the ids of those that cannot be read, which are left out then. Without it they
    raise DamagedRecordError.
    """
    found = []

    def leave_out(key: bytes, error: DamagedRecordError) -> None:
        if damaged is None:
            raise error
        damaged(keys.thing("checkpoint", key))

    for key, value in reader.scan("checkpoint", damaged=leave_out):
        try:
            found.append(records.decode(value, records.CheckpointRecord))
        except DamagedRecordError as error:
            leave_out(key, error)
    found.sort(key=lambda record: record.epoch)
    return found


def last_checkpoint(reader: Reader, lineage: Lineage) -> records.CheckpointRecord | None:
    """The newest checkpoint that a lineage goes through, None when there is none, or it is
    damaged."""
    try:
        return next(on_line(reader, lineage), None)
    except DamagedRecordError:
        return None


def get_checkpoint(reader: Reader, checkpoint_id: str) -> records.CheckpointRecord:
    """By full id. Raises UnknownCheckpointError."""
    key = checkpoint_id.encode("utf-8", "replace")
    value = reader.get("checkpoint", key) if 0 < len(key) <= _LONGEST_NAME else None
    if value is None:
        raise UnknownCheckpointError(selector=checkpoint_id)
    return records.decode(value, records.CheckpointRecord)


def on_line(reader: Reader, lineage: Lineage) -> Iterator[records.CheckpointRecord]:
    """The checkpoints that a lineage goes through, newest first: one record a step."""
    missing = 0
    for epoch in lineage.epochs():
        # The newest ones of a live volume may not be committed yet.
        value = reader.get("epoch", keys.pack_id(epoch)) if epoch != lineage.head else None
        missing = 0 if value else missing + 1
        if missing > _MOST_MISSING:
            return  # a damaged store: its epochs could have any numbers
        sealed_by = records.decode(value, records.EpochRecord).checkpoint if value else ""
        if sealed_by:
            yield get_checkpoint(reader, sealed_by)


def resolve(reader: Reader, lineage: Lineage, selector: str, now_ns: int) -> Point:
    """The state that a selector names; `lineage` is the branch's.

    Raises UnknownCheckpointError, AmbiguousCheckpointError.
    """
    if selector in ("@", "@~0"):
        return Point(selector, lineage, None)
    if selector.startswith("@"):
        record = _relative(reader, lineage, selector, now_ns)
    else:
        record = _named(reader, selector)
    return Point(selector, reader.lineage(record.epoch), record)


def _relative(
    reader: Reader, lineage: Lineage, selector: str, now_ns: int
) -> records.CheckpointRecord:
    why = ": after @ comes ~N or {TIME}"
    if steps := re.fullmatch(r"@~(\d{1,9})", selector):
        wanted = int(steps[1])
        # What comes by itself does not count: a name must not change while it is typed.
        made = (record for record in on_line(reader, lineage) if record.kind not in UNASKED)
        for at, record in enumerate(made, start=1):
            if at == wanted:
                return record
        why = ": there are not so many before the present state"
    elif moment := re.fullmatch(r"@\{(.+)\}", selector):
        limit = parse_time(moment[1], now_ns)
        if limit is None:
            raise UnknownCheckpointError(selector=selector, why=f": {NO_TIME}")
        earlier = [r for r in all_checkpoints(reader) if r.time <= limit]
        if earlier:
            return earlier[-1]
        why = ": all are younger"
    raise UnknownCheckpointError(selector=selector, why=why)


def _named(reader: Reader, selector: str) -> records.CheckpointRecord:
    name = selector.encode("utf-8", "replace")
    labelled = reader.get("label", name) if 0 < len(name) <= _LONGEST_NAME else None
    if labelled is not None:
        return get_checkpoint(reader, labelled.decode("utf-8", "replace"))
    if re.fullmatch(r"[0-9a-fA-F]{4,12}", selector):
        found = [
            records.decode(value, records.CheckpointRecord)
            for _, value in reader.scan("checkpoint", selector.lower().encode())
        ]
        if len(found) == 1:
            return found[0]
        if found:
            matches = ", ".join(record.id[:8] for record in found[:5])
            raise AmbiguousCheckpointError(selector=selector, count=len(found), matches=matches)
    raise UnknownCheckpointError(selector=selector)


def parse_time(text: str, now_ns: int) -> int | None:
    """Nanoseconds since 1970 of "10 minutes ago", "yesterday", "14:30" or an ISO date and time."""
    text = text.strip().lower()
    moment = datetime.fromtimestamp(now_ns / 1e9)
    if text == "now":
        return now_ns
    if text == "yesterday":
        return now_ns - 86_400_000_000_000
    if ago := _AGO.fullmatch(text):
        unit = _UNITS.get(ago[2])
        if unit:
            count = 1 if ago[1].startswith("a") else int(ago[1])
            try:
                return now_ns - int(timedelta(**{unit: count}).total_seconds() * 1_000_000_000)
            except OverflowError:
                return None
    if clock := re.fullmatch(r"(\d{1,2}):(\d{2})", text):
        try:
            at = moment.replace(hour=int(clock[1]), minute=int(clock[2]), second=59)
        except ValueError:
            return None
        return int(at.timestamp() * 1e9)
    for form in _FORMATS:
        try:
            at = datetime.strptime(text.upper() if "T" in form else text, form)
            return int(at.timestamp() * 1e9) + 999_999_999
        except (ValueError, OverflowError):  # not of this form, or the year 1
            continue
    return None


def parent_checkpoint(reader: Reader, epoch: int) -> records.CheckpointRecord | None:
    """The checkpoint of the newest ancestor of an epoch."""
    return next(on_line(reader, reader.lineage(epoch)), None)


def epoch_record(reader: Reader, epoch: int) -> records.EpochRecord:
    """The record of an epoch."""
    return records.decode(reader.get("epoch", keys.pack_id(epoch)) or b"", records.EpochRecord)
