"""The audit log as a person would tell it: from operations to stories.

Operations of one process and of one kind belong together as long as no more than `_PAUSE_NS` lie
between them and no checkpoint does. What was made and renamed is told as made under its last name,
also where the program had it written to the disk in between; what was made and removed again was
temporary.

Threading: as the workspace.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence

from cowfs.errors import DamagedRecordError
from cowfs.format import audit
from cowfs.format.audit import AuditHead, AuditRecord, Operation
from cowfs.service.audit.log import Log, Process
from cowfs.service.audit.spans import Span
from cowfs.service.audit.stories import (
    CHANGED,
    EXCHANGED,
    LINKED,
    MADE,
    REDONE,
    REMOVED,
    RENAMED,
    RESTORED,
    TEMPORARY,
    UNDONE,
    Deed,
    Story,
    common,
)
from cowfs.store.snapshot import Reader, Snapshot

ALL = Span()
"""No limit."""
_PAUSE_NS = 3_000_000_000
_SOME = 10
"""Paths of each record of which the others are only counted."""
_MANY = 100
"""Operations of one record above which they are counted and not looked at one by one."""
_DIRECTORY = 4

_VERBS = {
    audit.MADE: MADE,
    audit.WROTE: CHANGED,
    audit.REMOVED: REMOVED,
    audit.RENAMED: RENAMED,
    audit.LINKED: LINKED,
    audit.ATTRIBUTES: "set attributes of",
    audit.EXCHANGED: EXCHANGED,
    audit.RESTORED: RESTORED,
    audit.UNDONE: UNDONE,
    audit.REDONE: REDONE,
}


class Paths:
    """The paths of operations; where the writer did not know a name, as it was in that epoch."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    def of(self, record: AuditRecord, operation: Operation) -> tuple[bytes, bytes | None]:
        """Its path, and the second one."""
        to = record.second_path(operation)
        if not operation.name and operation.ino > 1:
            return self._by_number(record.epoch, operation.ino), to
        return record.path(operation), to

    def _by_number(self, epoch: int, ino: int) -> bytes:
        try:
            lineage = self._reader.lineage(epoch)
            for seen in (lineage, lineage.at(self._reader.epoch(epoch).parent)):
                names = Snapshot(self._reader, seen).names_of(ino)
                if names:
                    return names[0]
        except (DamagedRecordError, ValueError):
            pass
        return b"(inode %d)" % ino


def deeds_of(record: AuditRecord, paths: Paths) -> list[Deed]:
    """The operations of a record, those that only prepare others folded into them."""
    made: dict[int, int] = {}
    found: list[Deed | None] = []
    for operation in record.operations:
        path, to = paths.of(record, operation)
        deed = Deed(
            _VERBS.get(operation.code, "?"),
            record.time + operation.after,
            path,
            to,
            operation.kind == _DIRECTORY,
            operation.size,
            operation.count,
            bool(operation.what & audit.REPLACED) and operation.kind != _DIRECTORY,
        )
        at = made.get(operation.ino)
        if operation.code == audit.MADE:
            made[operation.ino] = len(found)
        elif at is not None and (before := found[at]) is not None:
            if operation.code == audit.RENAMED and to is not None:
                verb = CHANGED if deed.replaced else before.verb
                found[at] = Deed(verb, deed.time, to, None, deed.is_directory, before.size)
                continue
            if operation.code == audit.REMOVED and path == before.path and before.verb == MADE:
                found[at] = Deed(TEMPORARY, deed.time, path, None, deed.is_directory, 0)
                del made[operation.ino]
                continue
        found.append(deed)
    return [deed for deed in found if deed is not None]


def is_below(path: bytes, tops: Sequence[bytes]) -> bool:
    """Whether a path is one of `tops` or lies below one."""
    return any(not top or path == top or path.startswith(top + b"/") for top in tops)


def may_concern(record: AuditRecord | AuditHead, tops: Sequence[bytes]) -> bool:
    """Whether any operation of a record can be about `tops`, judged by its directories."""
    if any(not directory for directory in record.directories):
        return True
    return any(
        is_below(directory, tops) or is_below(top, [directory])
        for directory in record.directories
        for top in tops
    )


def _merged(parts: list[Story]) -> Story:
    """One story of what a process did in several groups, the newest first. What it did to one path
    again and again counts once."""
    story, *later_ones = reversed(parts)
    seen = set(story.paths)
    for part in later_ones:
        fresh = [pair for pair in part.paths if pair not in seen]
        story.files += part.files - min(len(part.paths) - len(fresh), part.files)
        story.directories += part.directories
        story.size += part.size
        story.below = common(story.below, part.below)
        story.until = max(story.until, part.until)
        seen.update(fresh)
        story.paths += fresh
        story.replacing |= part.replacing
    return story


def _with_new_names(stories: list[Story]) -> list[Story]:
    """Fold renames of one file into what made it: `made f.tmp`, a commit, `renamed f.tmp to f`."""
    made: dict[tuple[int, bytes], Story] = {}
    for story in stories:
        if story.verb == MADE and len(story.paths) == story.files + story.directories:
            made.update({(story.process.number, path): story for path, _ in story.paths})
        if story.verb != RENAMED or len(story.paths) != story.files:
            continue
        origins = [made.get((story.process.number, path)) for path, _ in story.paths]
        named = {to for _, to in story.paths if to is not None}
        verbs = {CHANGED if to in story.replacing else MADE for to in named}
        if len(verbs) != 1 or not all(o and o.files and _belongs(o, story) for o in origins):
            continue
        for origin, (path, _) in zip(origins, story.paths, strict=True):
            assert origin is not None
            origin.paths.remove((path, None))
            origin.files -= 1
        story.verb = verbs.pop()
        story.paths = [(to, None) for to in sorted(named)]
        story.below = functools.reduce(common, sorted(named))
    return [story for story in stories if story.files or story.directories]


Choice = Callable[[Process], bool]


def tell(
    log: Log,
    record: AuditRecord,
    paths: Paths,
    tops: Sequence[bytes] = (),
    wanted: Choice | None = None,
    *,
    span: Span = ALL,
    whole: bool = False,
) -> list[Story]:
    """The stories of one record alone; of paths below `tops`, of processes that are wanted, and of
    the times of a span.

    whole: with all paths. Else of many operations of one kind only some are looked at.
    """
    process = log.process(record.process)
    if (wanted is not None and not wanted(process)) or (tops and not may_concern(record, tops)):
        return []
    if (
        not (whole or tops or span.is_timed)
        and len(record.operations) > _MANY
        and not _is_mixed(record)
    ):
        return [_counted(process, record, paths)]
    stories: dict[str, Story] = {}
    for deed in deeds_of(record, paths):
        second = deed.to_path
        if not span.has(deed.time):
            continue
        if tops and not (
            is_below(deed.path, tops) or (second is not None and is_below(second, tops))
        ):
            continue
        story = stories.get(deed.verb)
        if story is None:
            story = stories[deed.verb] = Story(
                process, deed.verb, record.epoch, deed.time, deed.time, record.detail
            )
        story.add(deed)
    return list(stories.values())


def _is_mixed(record: AuditRecord) -> bool:
    """Whether it has operations of more than one kind."""
    return len({operation.code for operation in record.operations}) > 1


def _counted(process: Process, record: AuditRecord, paths: Paths) -> Story:
    """The story of a record with many operations of one kind."""
    operations = record.operations
    first, last = operations[0], operations[-1]
    story = Story(
        process,
        _VERBS.get(first.code, "?"),
        record.epoch,
        record.time + first.after,
        record.time + last.after,
        record.detail,
    )
    story.directories = [operation.kind for operation in operations].count(_DIRECTORY)
    story.files = len(operations) - story.directories
    story.size = sum([operation.size for operation in operations])
    story.paths = [paths.of(record, operation) for operation in operations[:_SOME]]
    story.below = _below_all(record)
    return story


def _below_all(record: AuditRecord) -> bytes:
    """The longest path that all operations of a record are below, or at."""
    if not record.directories:
        return b""
    top, *others = record.directories
    for directory in others:
        top = common(top, directory)
    if top not in record.directories:
        return top
    place = record.directories.index(top)
    names = {operation.name for operation in record.operations if operation.directory == place}
    few = list(names)[:2]  # two are as good as many
    paths = [top + b"/" + name if top else name for name in few]
    first, *rest = paths + [path for path in record.directories if path != top]
    for path in rest:
        first = common(first, path)
    return first


def newest(
    log: Log,
    paths: Paths,
    limit: int,
    *,
    span: Span = ALL,
    tops: Sequence[bytes] = (),
    wanted: Choice | None = None,
    whole: bool = False,
) -> list[Story]:
    """The last `limit` stories (0: all), the oldest first; `span` and `whole` as of `tell`. The log
    is read from its end, as far as is needed."""
    found: list[list[Story]] = []
    open_ones: dict[tuple[int, str], list[Story]] = {}

    def chosen(head: AuditHead) -> bool:
        if span.last is not None and head.time > span.last:
            return False
        if wanted is not None and not wanted(log.process(head.process)):
            return False
        return not tops or may_concern(head, tops)

    for record in log.backwards(span.after, span.until, chosen):
        told = tell(log, record, paths, tops, wanted, span=span, whole=whole)
        for story in reversed(told):
            key = record.process, story.verb
            parts = open_ones.get(key)
            if parts is not None and _belongs(story, parts[-1]):
                parts.append(story)
                continue
            open_ones[key] = [story]
            found.append(open_ones[key])
        if limit and len(found) > limit and _settled(found[:limit], record):
            break
    stories = [_merged(parts) for parts in reversed(found[:limit] if limit else found)]
    return _with_new_names(sorted(stories, key=lambda story: story.until))


def _belongs(earlier: Story, later: Story) -> bool:
    return (
        earlier.epoch == later.epoch
        and later.time - earlier.until < _PAUSE_NS
        and later.verb not in (RESTORED, UNDONE, REDONE)
    )


def _settled(stories: Sequence[list[Story]], record: AuditRecord) -> bool:
    """Whether nothing before a record can belong to any of these."""
    return all(
        parts[-1].time - record.time >= _PAUSE_NS or parts[-1].epoch > record.epoch
        for parts in stories
    )


def later(
    log: Log,
    paths: Paths,
    number: int,
    tops: Sequence[bytes],
    wanted: Choice | None,
    *,
    whole: bool,
) -> Iterator[tuple[int, list[Story]]]:
    """(number of the record, its stories) of what came after a record."""
    for at, record in log.since(number):
        yield at, tell(log, record, paths, tops, wanted, whole=whole)
