"""Apply: make the base directory what the workspace shows (contract 6).

What is written is the difference between the epoch that the base shows (`applied` of the branch)
and a sealed epoch of the head, so the cost is that of the changes. The order keeps everything safe
at every moment:

1. Base files that will be overwritten or deleted are sealed into the store and committed. A file
   that somebody changed there meanwhile is left, or kept aside as NAME.outside-N.
2. `applying` is committed with the epoch that is applied: a crash from here on is finished by the
   next start.
3. Names that go or move: moved things wait in a staging directory inside the base.
4. Names that come; files are written in the staging directory and renamed into place.
5. Contents, attributes, directory times; syncfs(2).
6. The base's fingerprints and `applied` are committed, and `applying` is removed.

Every step looks at what is there and does only what is missing, so it can be repeated. Directories
are reached component by component without following symbolic links.

Threading: for the threads that an `Engine` is for; one apply at a time.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from cowfs.errors import ApplyConflictError, UnknownPathError
from cowfs.format import keys, records
from cowfs.service.applying.apart import closed_to_us, detach
from cowfs.service.applying.executor import Executor
from cowfs.service.applying.leaving import Mover
from cowfs.service.applying.plan import Plan, make_plan
from cowfs.service.applying.reach import Reach, sync_file_system
from cowfs.service.applying.staging import staging_place
from cowfs.service.checkpoint import checkpoint
from cowfs.service.engine import Engine, commit
from cowfs.service.sealing import Pace, seal, seal_content
from cowfs.store.snapshot import Reader, Snapshot
from cowfs.store.steps import reached
from cowfs.types import ROOT_INO
from cowfs.volume.history import Author
from cowfs.volume.importing import ROOT_KEY, base_record
from cowfs.volume.posix import PosixError

Progress = Callable[..., None]
"""Called with done, total and path."""


@dataclass(slots=True)
class Applied:
    """What an apply did (or would do). problems: what could not be done exactly, per path."""

    epoch: int
    created: int = 0
    written: int = 0
    deleted: int = 0
    moved: int = 0
    attributes: int = 0
    problems: list[dict[str, str]] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Plain data for answers."""
        return {
            "epoch": self.epoch,
            "created": self.created,
            "written": self.written,
            "deleted": self.deleted,
            "moved": self.moved,
            "attributes": self.attributes,
            "problems": self.problems,
        }


def apply(engine: Engine, author: Author, progress: Progress, *, dry_run: bool = False) -> Applied:
    """Write the head's changes into the base. Raises ApplyConflictError, StoreFullError.

    With `dry_run` nothing is written or sealed; the counts say what would be done.
    """
    volume = engine.volume
    if volume.base is None:
        raise ApplyConflictError(path="", detail="the base directory is not there")
    engine.flush()
    commit(engine)
    reached("apply.begin")
    resumed = unfinished(engine)
    if resumed is None and not dry_run:
        _adopt_external(engine)
        epoch = _seal_head(engine, author)
    else:
        epoch = resumed if resumed is not None else volume.main.head
    with Reader(volume.store) as reader:
        before = Snapshot(reader, reader.lineage(volume.branch.applied))
        after = Snapshot(reader, reader.lineage(epoch))
        plan = make_plan(before, after)
        if resumed is not None:
            plan.resume(after)
        result = Applied(
            epoch,
            created=len(plan.created),
            written=len(plan.rewritten),
            deleted=len(plan.deleted),
            moved=len(plan.moved),
            attributes=len(plan.touched) - len(plan.created) - len(plan.rewritten),
        )
        result.attributes = max(0, result.attributes)
        if dry_run:
            return result
        detach(volume.base, before, after, plan)
        contents, closed = closed_to_us(after, plan)
        plan.seal_first(before, contents)
    if plan.empty:
        _finish(engine, plan, epoch, {})
        return result
    reached("apply.sealed")
    _save_old_content(engine, plan, progress)
    if resumed is None:  # else it was done before, and looking would find a half written base
        _save_what_closes(engine, closed)
    reached("apply.saved")
    _set_applying(engine, epoch)
    reached("apply.marked")
    with Reader(volume.store) as reader:
        before = Snapshot(reader, reader.lineage(volume.branch.applied))
        after = Snapshot(reader, reader.lineage(epoch))
        executor = Executor(volume.base, before, after, plan, progress, _mover(engine))
        try:
            found = executor.run()
        except OSError as error:
            path = os.fsdecode(executor.current)
            raise ApplyConflictError(
                path=path or ".", detail=error.strerror or str(error)
            ) from None
        result.problems = executor.problems.rows
    reached("apply.written")
    _sync(volume.base.fd)
    reached("apply.synced")
    _finish(engine, plan, epoch, found)
    reached("apply.recorded")
    return result


def unfinished(engine: Engine) -> int | None:
    """The epoch of an apply that a crash interrupted, None when there is none."""
    value = engine.call(lambda: engine.volume.reader.get("meta", b"applying"))
    return keys.unpack_id(value) if value else None


def _adopt_external(engine: Engine) -> None:
    """Look at the base directories that will be written: what was changed there is adopted."""
    volume = engine.volume

    def look() -> None:
        reader = volume.reader
        before = Snapshot(reader, reader.lineage(volume.branch.applied))
        for ino in make_plan(before, volume.main.snapshot).directories:
            try:
                volume.main.directory(ino)
            except PosixError:
                continue

    engine.call(look)
    commit(engine)


def _seal_head(engine: Engine, author: Author) -> int:
    """A sealed epoch that shows the head: a checkpoint, unless the last one shows it already."""
    volume = engine.volume

    def unchanged() -> int | None:
        volume.external.adoption.settle()
        return None if volume.epoch_changed else volume.open_epoch.parent

    epoch = engine.call(unchanged)
    commit(engine)
    if epoch is not None:
        return epoch
    record = checkpoint(engine, author, message="applied to the directory", kind="apply")
    return record.epoch


def _save_old_content(engine: Engine, plan: Plan, progress: Progress) -> None:
    """Seal what will be overwritten or deleted; commit in portions, so memory stays bounded."""
    base = engine.volume.base
    assert base is not None
    reach, total = Reach(base), len(plan.contents_to_seal)
    for done, content in enumerate(plan.contents_to_seal, start=1):
        if seal_content(engine, content, reach.open_file):
            plan.unsaved.add(content)
        if done % 50 == 0 or done == total:
            progress(phase="save", done=done, total=total, path="")
    commit(engine)


def _save_what_closes(engine: Engine, directories: list[bytes]) -> None:
    """Seal what lies in directories that will be closed to the daemon's user."""
    for path in directories:
        # It may have another name by now, or hold what could not be read before either.
        with contextlib.suppress(UnknownPathError):
            seal(engine, [path], Pace(), lambda **_: None)


def _set_applying(engine: Engine, epoch: int) -> None:
    volume = engine.volume
    engine.call(lambda: volume.extra.put("meta", b"applying", keys.pack_id(epoch)))
    commit(engine)


def _mover(engine: Engine) -> Mover:
    """Moves things in the base in the owner's thread, so that no read meets them half-way."""

    def move(
        rename: Callable[[], os.stat_result], record: records.BaseRecord, parent: int, name: bytes
    ) -> None:
        def run() -> None:
            engine.volume.importer.moved(record, parent, name, rename())

        engine.call(run)

    return move


def _finish(
    engine: Engine,
    plan: Plan,
    epoch: int,
    found: dict[tuple[int, bytes], records.BaseRecord],
) -> None:
    """The base shows `epoch` from now on: new fingerprints, new places."""
    volume = engine.volume

    def finish() -> None:
        importer = volume.importer
        for parent, name in plan.gone_names:
            if (parent, name) not in found:
                importer.forget_base(parent, name)
        for ino in plan.moved:
            importer.forget_base(*staging_place(ino))
        for ino in plan.removed_directories:
            # A directory that a restore brings back is not compared with what lies there then.
            importer.forget_origin(ino)
        for (parent, name), record in found.items():
            importer.set_base(parent, name, record)
            thing = record.ino if record.kind == records.kind_of(0o040000) else record.content
            origin = importer.origin(thing) if thing else None
            if record.kind == records.kind_of(0o040000) and origin is None:
                importer.set_origin(thing, records.ORIGIN_DONE, parent, name)
            elif origin is not None and (origin.parent, origin.name) != (parent, name):
                importer.set_origin(thing, origin.state, parent, name)
        if volume.base is not None:
            volume.base.forget()
            if not plan.empty:
                top = base_record(volume.base.root(), ROOT_INO, 0)
                volume.extra.put("meta", ROOT_KEY, records.pack_base(top))
        branch = volume.branch
        volume.branch = records.BranchRecord(
            branch.name, branch.head, branch.undo, branch.redo, epoch
        )
        volume.put_branch()
        volume.extra.delete("meta", b"applying")

    engine.call(finish)
    commit(engine)


def _sync(fd: int) -> None:
    try:
        sync_file_system(fd)
    except OSError as error:
        raise ApplyConflictError(path=".", detail=f"cannot sync: {error.strerror}") from None
