"""`Workspace.open_async`: a workspace for coroutines, under trio and asyncio.

Each call runs in a thread of the library that is running. What is cancelled:

- a call that changes something (`checkpoint`, `restore`, `undo`, `redo`, `mount`, `unmount`) is not
  stopped in the middle: the task goes on, as cancelled, when it has been done, or has failed;
- a call that only reads is left to itself: the task goes on at once, and what the thread finds is
  dropped.

Threading: an `AsyncWorkspace` may be used by several tasks at once, of one event loop.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Iterable
from functools import partial
from types import TracebackType
from typing import TypeVar

import sniffio

from cowfs.api.access import Named, Paths
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
from cowfs.api.workspace import LAST, NOW, Workspace
from cowfs.errors import UsageError

T = TypeVar("T")


async def _changing(call: Callable[[], T]) -> T:
    """Run it in a thread; also a cancelled task waits for its end."""
    if sniffio.current_async_library() == "trio":
        import trio

        return await trio.to_thread.run_sync(call, abandon_on_cancel=False)
    import asyncio

    # A future and no task: when the loop ends it cancels all tasks.
    work = asyncio.get_running_loop().run_in_executor(None, call)
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        while not work.done():
            try:
                await asyncio.wait((work,))
            except asyncio.CancelledError:
                continue  # once more: it is still not done
        if not work.cancelled():
            work.exception()  # it was seen
        raise


async def _looking(call: Callable[[], T]) -> T:
    """Run it in a thread that is left to itself when the task is cancelled."""
    if sniffio.current_async_library() == "trio":
        import trio

        return await trio.to_thread.run_sync(call, abandon_on_cancel=True)
    import asyncio

    return await asyncio.to_thread(call)


class AsyncWorkspace:
    """A workspace for coroutines; `Workspace.open_async` makes one. The methods are those of
    `Workspace`, and can be awaited; what they do is written there."""

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        """Not for programs. It is opened by `async with`."""
        self._directory = directory
        self._opened: Workspace | None = None

    @classmethod
    async def mount(
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
    ) -> AsyncWorkspace:
        """`Workspace.mount`."""
        mounted = await _changing(
            partial(
                Workspace.mount,
                directory,
                store=store,
                at=at,
                quota=quota,
                restart=restart,
                allow_other=allow_other,
                automatic=automatic,
                force=force,
            )
        )
        workspace = cls(mounted.base)
        workspace._opened = mounted
        return workspace

    async def __aenter__(self) -> AsyncWorkspace:
        if self._opened is None:
            self._opened = await _looking(partial(Workspace.open, self._directory))
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._opened is not None:
            self._opened.close()

    @property
    def sync(self) -> Workspace:
        """The same workspace for code that may wait. Raises UsageError before it is entered."""
        if self._opened is None:
            raise UsageError(detail="an AsyncWorkspace is opened by `async with`")
        return self._opened

    @property
    def base(self) -> str:
        return self.sync.base

    @property
    def path(self) -> str:
        return self.sync.path

    @property
    def store(self) -> str:
        return self.sync.store

    async def unmount(
        self, *, apply: bool = True, force: bool = False, timeout: float = 10.0
    ) -> Unmounted:
        return await _changing(
            partial(self.sync.unmount, apply=apply, force=force, timeout=timeout)
        )

    async def status(self) -> Status:
        return await _looking(self.sync.status)

    async def checkpoint(
        self, message: str = "", label: str = "", *, if_changed: bool = False
    ) -> Checkpoint:
        return await _changing(partial(self.sync.checkpoint, message, label, if_changed=if_changed))

    async def get(self, checkpoint: Named) -> Checkpoint:
        return await _looking(partial(self.sync.get, checkpoint))

    async def log(
        self, limit: int | None = None, before: Named | None = None
    ) -> tuple[Checkpoint, ...]:
        return await _looking(partial(self.sync.log, limit, before))

    async def checkpoints(self) -> AsyncIterator[Checkpoint]:
        """All checkpoints, the newest first, read as they are asked for: `async for`."""
        pages = self.sync.pages()
        while page := await _looking(partial(next, pages, ())):
            for row in page:
                yield row

    async def changes(
        self,
        paths: Paths = (),
        *,
        since: Named | None = None,
        until: Named | None = None,
        by: str | None = None,
        outside: bool = False,
        limit: int | None = None,
    ) -> tuple[Activity, ...]:
        return await _looking(
            partial(
                self.sync.changes,
                paths,
                since=since,
                until=until,
                by=by,
                outside=outside,
                limit=limit,
            )
        )

    async def diff(
        self, a: Named = LAST, b: Named = NOW, paths: Paths = (), *, lines: bool = False
    ) -> Diff:
        return await _looking(partial(self.sync.diff, a, b, paths, lines=lines))

    async def patch(
        self, a: Named = LAST, b: Named = NOW, paths: Paths = (), *, limit: int | None = None
    ) -> Patch:
        return await _looking(partial(self.sync.patch, a, b, paths, limit=limit))

    async def show(
        self, path: str | os.PathLike[str], checkpoint: Named, *, limit: int | None = None
    ) -> bytes:
        return await _looking(partial(self.sync.show, path, checkpoint, limit=limit))

    async def preview(
        self,
        checkpoint: Named,
        paths: Paths = (),
        *,
        exclude: Iterable[str] = (),
        volatile: bool = False,
        lines: bool = False,
    ) -> Preview:
        return await _looking(
            partial(
                self.sync.preview,
                checkpoint,
                paths,
                exclude=exclude,
                volatile=volatile,
                lines=lines,
            )
        )

    async def restore(
        self,
        checkpoint: Named,
        paths: Paths = (),
        *,
        exclude: Iterable[str] = (),
        volatile: bool = False,
        expect: Named | None = None,
    ) -> Restored:
        return await _changing(
            partial(
                self.sync.restore,
                checkpoint,
                paths,
                exclude=exclude,
                volatile=volatile,
                expect=expect,
            )
        )

    async def undo(self) -> Restored:
        return await _changing(self.sync.undo)

    async def redo(self) -> Restored:
        return await _changing(self.sync.redo)

    async def sessions(self) -> tuple[Session, ...]:
        return await _looking(self.sync.sessions)

    async def context(self, checkpoint: Named) -> Context | None:
        return await _looking(partial(self.sync.context, checkpoint))
