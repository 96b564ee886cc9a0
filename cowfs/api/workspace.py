"""`cowfs.Workspace`: a workspace for a Python program (docs/api.md).

Threading: a `Workspace` may be used from any thread, and several at once (api/access.py).
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cowfs.api import answers, mounting, offline, opening, unmounting
from cowfs.api.access import Access, Named, Paths, absolute, ours, turns
from cowfs.api.results import (
    Activity,
    Checkpoint,
    Context,
    Diff,
    Patch,
    Preview,
    Restored,
    Session,
    Status,
    Unmounted,
)
from cowfs.client import places
from cowfs.client.places import Place
from cowfs.errors import DaemonUnreachableError, NotMountedError, UsageError

if TYPE_CHECKING:
    from cowfs.api.asynchronous import AsyncWorkspace
    from cowfs.service.selectors import Point

LAST = "@~1"
NOW = "@"
_FIRST_PAGE = 50


class Workspace(Access):
    """A workspace. `Workspace.open` and `Workspace.mount` make one.

    All methods raise CowfsError (`cowfs.errors`, docs/errors.md). What a method does is what the
    command of the same name does, and it is done when the method returns. As a context manager it
    gives nothing back at the end but itself: the workspace stays mounted.
    """

    # -- where it is ------------------------------------------------------------------------

    @classmethod
    def open(cls, directory: str | os.PathLike[str] = ".") -> Workspace:
        """The workspace that holds a directory, mounted or not, found as by the command line.

        Raises NotAWorkspaceError, PermissionDeniedError.
        """
        with ours():
            return cls(opening.locate(absolute(directory)))

    @classmethod
    def open_async(cls, directory: str | os.PathLike[str] = ".") -> AsyncWorkspace:
        """The same for a coroutine, under trio or asyncio: to be entered with `async with`."""
        from cowfs.api.asynchronous import AsyncWorkspace

        return AsyncWorkspace(directory)

    @classmethod
    def mount(
        cls,
        directory: str | os.PathLike[str],
        *,
        store: str | os.PathLike[str] | None = None,
        at: str | os.PathLike[str] | None = None,
        quota: int | None = None,
        restart: bool = False,
        allow_other: bool = False,
        automatic: bool | None = None,
        force: bool = False,
    ) -> Workspace:
        """Mount a directory over itself, as `cowfs mount` does. The daemon outlives this process.

        store: where the history is kept. at: an empty directory to mount on instead. quota: bytes
        that the store may hold, 0 for no limit; None: as before. restart: start the daemon again
        when it is killed. allow_other: let other users in. automatic: make checkpoints by itself;
        None: unless the variable COWFS_AUTOMATIC says no. force: mount even / or the home
        directory. A dead mount there is cleaned up first.

        Raises AlreadyMountedError, NotADirectoryPathError, ForbiddenWorkspaceError,
        NestedWorkspaceError, FuseUnavailableError, MountFailedError and the errors of stores.
        """
        with ours():
            base = os.path.realpath(absolute(directory))
            target = os.path.realpath(absolute(at)) if at is not None else base
            for path in {base, target}:
                unmounting.clean_up(path)
            if store is not None:
                kept = os.path.realpath(absolute(store))
            else:
                kept = places.registered_store(base) or mounting.default_store(base)
            plan = mounting.Plan(
                base,
                target,
                kept,
                allow_other,
                restart=restart,
                quota=quota,
                automatic=_automatic() if automatic is None else automatic,
            )
            mounting.check(plan, force=force)
            mounting.make_store(plan)
            mounting.start_daemon(plan)
            with contextlib.suppress(OSError):  # it is mounted all the same
                places.register(plan.base, plan.mountpoint, plan.store)
            return cls(Place(plan.base, plan.mountpoint, plan.store, mounted=True))

    def unmount(
        self, *, apply: bool = True, force: bool = False, timeout: float = 10.0
    ) -> Unmounted:
        """Unmount it, as `cowfs unmount` does; the object can be used further, for reading.

        apply: of one that is mounted over its directory, write the present state into the
        directory. force: whoever uses it. timeout: seconds to wait for who uses it. A process
        whose working directory lies inside uses it, this one too.

        Raises NotMountedError, BusyError, ApplyConflictError, UnmountFailedError.
        """
        with ours():
            place = self._located()
            if not place.mounted:
                raise NotMountedError(path=place.mountpoint)
            wanted = apply and place.in_place
            try:
                daemon = opening.connect(place)
            except DaemonUnreachableError:
                if not unmounting.clean_up(place.mountpoint):
                    raise
                if not wanted:
                    return answers.unmounted(None)
                with turns[place.store]:
                    author = opening.author(_command())
                    return answers.unmounted(unmounting.apply_offline(self._located(), author))
            assert daemon is not None
            params = {"force": force, "apply": wanted}
            with daemon:
                answer = unmounting.ask(daemon, params, 0.0 if force else timeout)
            unmounting.wait_for_end(place, answer.get("pid"))
            return answers.unmounted(answer["applied"], answer["unstored"])

    def status(self) -> Status:
        """How it is. Also of one that is not mounted, or whose daemon is dead."""
        with ours():
            place = self._located()
            report, mounted = opening.status(place, turns[place.store])
            return answers.status(place, report, mounted=mounted)

    # -- making and looking at checkpoints ------------------------------------------------------

    def checkpoint(
        self, message: str = "", label: str = "", *, if_changed: bool = False
    ) -> Checkpoint:
        """Keep the present state; on stable storage when this returns.

        label: a unique name for it. if_changed: when nothing has changed since the last one, that
        is returned (`made` is false, message and label are not used).
        Raises BadLabelError, LabelInUseError, LabelBesideError, StoreFullError.
        """
        params = {"message": _text(message), "label": label, "if_changed": if_changed}
        with ours():
            with self._daemon() as daemon:
                if daemon is not None:
                    answer = daemon.call("checkpoint", params)
                    return answers.checkpoint(answer["checkpoint"], made=answer["made"])
            with self._writing() as engine:
                answer = offline.checkpoint(engine, opening.author(_command()), params)
            return answers.checkpoint(answer["checkpoint"], made=answer["made"])

    def get(self, checkpoint: Named) -> Checkpoint:
        """The checkpoint that a text names. Raises UnknownCheckpointError,
        AmbiguousCheckpointError."""
        from cowfs.format import records

        with ours(), self._reading(need_base=False) as workspace:
            found = workspace.point(str(checkpoint)).checkpoint
            if found is None:
                raise UsageError(detail="@ is the present state, which is no checkpoint")
            return answers.checkpoint(records.to_dict(found))

    def log(self, limit: int | None = None, before: Named | None = None) -> tuple[Checkpoint, ...]:
        """The newest `limit` checkpoints (None: all), the newest first; before: only those that are
        older than this one. Those that are damaged are left out."""
        from cowfs.format import records
        from cowfs.service.timeline import Timeline

        with ours(), self._reading(need_base=False) as workspace:
            states = Timeline(workspace, lambda _: None).states
            top = self._epoch(workspace, before) if before is not None else states.head
            rows = (record for record in states.newest_first() if record.epoch < top)
            found = []
            for record in islice(rows, limit):
                above = states.checkpoint(states.parent(record.epoch)) if record.epoch else None
                parent = above.id if above else None
                found.append(answers.checkpoint(records.to_dict(record), parent=parent))
            return tuple(found)

    def checkpoints(self) -> Iterator[Checkpoint]:
        """All checkpoints, the newest first, read as they are asked for."""
        for page in self.pages():
            yield from page

    def pages(self) -> Iterator[tuple[Checkpoint, ...]]:
        """The same, as they are read: some at a time."""
        limit = _FIRST_PAGE
        page = self.log(limit)
        while page:
            yield page
            if len(page) < limit:
                return
            limit *= 2  # each page passes over all that is newer: so there must be few of them
            page = self.log(limit, page[-1])

    # -- what changed ---------------------------------------------------------------------------

    def changes(
        self,
        paths: Paths = (),
        *,
        since: Named | None = None,
        until: Named | None = None,
        by: str | None = None,
        outside: bool = False,
        limit: int | None = None,
    ) -> tuple[Activity, ...]:
        """Who changed what, the newest last: what a process did in one go is one of them.

        paths: only to these. since, until: after and before these checkpoints, or times ("2 h ago",
        "14:30", a date). by: a program, a pid, a user, a session, a sub-agent or a call of a tool;
        what a process started counts as its work. outside: only what was done by others while a
        session was going on. limit: the last so many.
        """
        from cowfs.service.audit.log import Log
        from cowfs.service.audit.log import Process as Writer
        from cowfs.service.audit.spans import span_of
        from cowfs.service.audit.telling import Paths as Names
        from cowfs.service.audit.telling import newest

        def wanted(process: Writer) -> bool:
            return not (by and not process.is_of(by)) and (process.record.outside or not outside)

        if limit == 0:
            return ()
        with ours(), self._reading(need_base=False) as workspace:
            told = newest(
                Log(workspace.reader),
                Names(workspace.reader),
                limit or 0,
                span=span_of(
                    workspace,
                    None if since is None else str(since),
                    None if until is None else str(until),
                    time.time_ns(),
                ),
                tops=self._inside(paths),
                wanted=wanted if by or outside else None,
                whole=True,
            )
            return tuple(answers.activity(story) for story in told)

    def diff(
        self, a: Named = LAST, b: Named = NOW, paths: Paths = (), *, lines: bool = False
    ) -> Diff:
        """What must happen to state `a` to become state `b`: by default, what changed since the
        last checkpoint. "@" is the present. lines: count added and removed lines, which reads the
        files.

        Raises UnknownCheckpointError, UnknownPathError.
        """
        from cowfs.service.diff import diff
        from cowfs.service.textdiff import stat_of

        with ours(), self._reading() as workspace:
            one, two = workspace.point(str(a)), workspace.point(str(b))
            found = diff(workspace, one, two, self._inside(paths))
            changes = tuple(
                answers.change(change, stat_of(change) if lines else None) for change in found
            )
            return Diff(_name(one), _name(two), changes)

    def patch(
        self, a: Named = LAST, b: Named = NOW, paths: Paths = (), *, limit: int | None = None
    ) -> Patch:
        """The same as a patch that `git apply` and `patch -p1` take. limit: stop when there are so
        many bytes (`complete` is false then)."""
        from cowfs.service.diff import diff
        from cowfs.service.textdiff import patch

        with ours(), self._reading() as workspace:
            one, two = workspace.point(str(a)), workspace.point(str(b))
            found = diff(workspace, one, two, self._inside(paths))
            omitted: list[tuple[str, str]] = []
            pieces = patch(
                workspace,
                one,
                two,
                found,
                omitted=lambda path, why: omitted.append((os.fsdecode(path), why)),
            )
            data, complete = _first(pieces, limit)
            return Patch(_name(one), _name(two), data, tuple(omitted), complete)

    def show(
        self, path: str | os.PathLike[str], checkpoint: Named, *, limit: int | None = None
    ) -> bytes:
        """A file's content at a checkpoint, or its first `limit` bytes; of a symbolic link, where
        it pointed to.

        Raises UnknownCheckpointError, UnknownPathError, NotARegularFileError, ContentLostError.
        """
        from cowfs.service.export import read_file

        with ours(), self._reading() as workspace:
            _, pieces = read_file(workspace, workspace.point(str(checkpoint)), self._inner(path))
            return _first(pieces, limit)[0]

    # -- going back -----------------------------------------------------------------------------

    def preview(
        self,
        checkpoint: Named,
        paths: Paths = (),
        *,
        exclude: Iterable[str] = (),
        volatile: bool = False,
        lines: bool = False,
    ) -> Preview:
        """What `restore` would change with the same arguments. lines: as of `diff`."""
        from cowfs.format import records
        from cowfs.service.expecting import state_of
        from cowfs.service.preview import preview
        from cowfs.service.textdiff import stat_of

        with ours(), self._reading() as workspace:
            found = preview(
                workspace,
                Path(self.store),
                str(checkpoint),
                self._inside(paths),
                [os.fsencode(pattern) for pattern in exclude],
                volatile=volatile,
            )
            changes = tuple(
                answers.change(change, stat_of(change) if lines else None)
                for change in found.changes
            )
            return Preview(
                answers.checkpoint(records.to_dict(found.checkpoint)),
                changes,
                found.left,
                state_of(workspace.reader),
            )

    def restore(
        self,
        checkpoint: Named,
        paths: Paths = (),
        *,
        exclude: Iterable[str] = (),
        volatile: bool = False,
        expect: Named | None = None,
    ) -> Restored:
        """Make the workspace, or only some paths of it, what it was at a checkpoint.

        Nothing is lost: the state before is a checkpoint of its own, and `undo` goes back to it.
        exclude: patterns (* ? []) of paths or names to leave alone. volatile: also what the
        setting `volatile.paths` leaves alone otherwise. expect: only if what would be restored is
        still what it was then: the `state` of a preview or a status, or a checkpoint.

        Raises UnknownCheckpointError, AmbiguousCheckpointError, UnknownPathError, StateMovedError,
        StoreFullError.
        """
        with ours():
            params = {
                "checkpoint": str(checkpoint),
                "paths": [os.fsdecode(path) for path in self._inside(paths)],
                "exclude": list(exclude),
                "volatile": volatile,
                "expect": str(expect or ""),
                "conversation": "",
            }
            return self._go("restore", params)

    def undo(self) -> Restored:
        """Take the last restore back. Raises NothingToUndoError."""
        with ours():
            return self._go("undo", {})

    def redo(self) -> Restored:
        """Take the last undo back. Raises NothingToUndoError."""
        with ours():
            return self._go("redo", {})

    # -- sessions of agents ---------------------------------------------------------------------

    def sessions(self) -> tuple[Session, ...]:
        """The sessions of agents that worked here, the one that was heard of last first; each is
        followed by its sub-agents."""
        from cowfs.service.sessions.listing import listed

        with ours(), self._reading(need_base=False) as workspace:
            return tuple(answers.sessions(listed(workspace.reader)))

    def context(self, checkpoint: Named) -> Context | None:
        """What a checkpoint knows besides the files; None when it knows nothing."""
        from cowfs.service.sessions import reading

        with ours(), self._reading(need_base=False) as workspace:
            point = workspace.point(str(checkpoint))
            if point.checkpoint is None:
                return None
            record = reading.context(workspace.reader, point.checkpoint.id)
            return answers.context(record) if record is not None else None

    # -- how -----------------------------------------------------------------------------------

    def _go(self, operation: str, params: dict[str, Any]) -> Restored:
        with self._daemon() as daemon:
            if daemon is not None:
                return answers.restored(daemon.call(operation, params))
        with self._writing() as engine:
            author = opening.author(_command())
            return answers.restored(offline.restore(engine, author, operation, params))


def _first(pieces: Iterable[bytes], limit: int | None) -> tuple[bytes, bool]:
    """At most the first `limit` bytes, and whether that is all. No more is read than needed."""
    found, size = [], 0
    for piece in pieces:
        found.append(piece)
        size += len(piece)
        if limit is not None and size > limit:
            return b"".join(found)[:limit], False
    return b"".join(found), True


def _name(point: Point) -> str:
    return point.checkpoint.id if point.checkpoint else NOW


def _text(message: str) -> str:
    """A message with what is not UTF-8 in it replaced."""
    return message.encode("utf-8", "surrogatepass").decode("utf-8", "replace")


def _command() -> str:
    """The command line of this process, as the daemon sees those of others."""
    from cowfs.daemon.control import command_line

    return command_line(os.getpid())


def _automatic() -> bool:
    said = os.environ.get("COWFS_AUTOMATIC", "").lower()
    return said not in ("0", "false", "f", "no", "n", "off")
