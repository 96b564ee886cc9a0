"""`Workspace.open_async` under trio and asyncio, and what happens to a call when its task is
cancelled."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trio
import trio.testing

from cowfs import AsyncWorkspace, Checkpoint, Workspace
from cowfs.errors import NotAWorkspaceError, UnknownCheckpointError, UsageError

Run = Callable[[Callable[[], Awaitable[None]]], None]
_SECONDS = 60


def _with_asyncio(main: Callable[[], Awaitable[None]]) -> None:
    async def entered() -> None:
        await main()

    asyncio.run(entered())


@pytest.fixture(params=[trio.run, _with_asyncio], ids=["trio", "asyncio"])
def run(request: pytest.FixtureRequest) -> Run:
    """Runs a coroutine function with one of the libraries."""
    found: Run = request.param
    return found


def test_it_has_all_that_the_other_has() -> None:
    own = {"open", "open_async", "close", "mounted", "pages", "mount"}
    for name, value in vars(Workspace).items():
        if name.startswith("_") or name in own:
            continue
        other = getattr(AsyncWorkspace, name)
        if not isinstance(value, property):
            assert inspect.signature(other).parameters == inspect.signature(value).parameters
    assert (
        inspect.signature(AsyncWorkspace.mount).parameters
        == inspect.signature(Workspace.mount).parameters
    )


@pytest.mark.usefixtures("needs_fuse")
def test_a_whole_life(run: Run, project: Path) -> None:
    async def main() -> None:
        async with await AsyncWorkspace.mount(project, automatic=False) as workspace:
            assert workspace.path == workspace.base == str(project)
            one = await workspace.checkpoint("one", label="one")
            (project / "readme").write_text("other\n")
            diff = await workspace.diff(one)
            assert [(change.status, change.path) for change in diff.changes] == [("M", "readme")]
            assert (await workspace.patch(one)).data.endswith(b"+other\n")
            preview = await workspace.preview(one)
            assert [change.path for change in preview.changes] == ["readme"]
            assert (await workspace.restore(one)).checkpoint == one
            assert (project / "readme").read_text() == "one\ntwo\n"
            await workspace.undo()
            await workspace.redo()
            assert await workspace.show("readme", "@") == b"one\ntwo\n"
            assert (await workspace.get("one")) == one
            found = [row async for row in workspace.checkpoints()]
            assert found == list(await workspace.log())
            assert found == list(workspace.sync.checkpoints())
            assert (await workspace.status()).mounted
            assert await workspace.changes(["readme"]) == workspace.sync.changes(["readme"])
            assert await workspace.sessions() == ()
            assert await workspace.context(one) == workspace.sync.context(one)
            with pytest.raises(UnknownCheckpointError):
                await workspace.restore("nope")
            await workspace.unmount()
        with pytest.raises(UsageError, match="closed"):
            await workspace.status()
        async with Workspace.open_async(project) as again:
            assert not (await again.status()).mounted

    run(main)


def test_what_is_no_workspace(run: Run, project: Path) -> None:
    async def main() -> None:
        workspace = Workspace.open_async(project)
        with pytest.raises(UsageError):
            await workspace.status()
        with pytest.raises(NotAWorkspaceError):
            async with workspace:
                raise AssertionError

    run(main)


# -- cancelling -------------------------------------------------------------------------------


class Slow:
    """A method of `Workspace` that does not return before it is let go."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.go = threading.Event()
        self.done = threading.Event()

    def __call__(self, *arguments: object, **named: object) -> Checkpoint:
        self.entered.set()
        assert self.go.wait(_SECONDS)
        self.done.set()
        raise UnknownCheckpointError(selector="slow")


@pytest.fixture
def opened(project: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncWorkspace:
    """Of a workspace that is not there: its methods are replaced."""
    from cowfs.client.places import Place

    workspace = AsyncWorkspace(project)
    workspace._opened = Workspace(Place(str(project), str(project), "/nowhere", mounted=False))
    return workspace


def _slow(monkeypatch: pytest.MonkeyPatch, method: str) -> Slow:
    slow = Slow()
    monkeypatch.setattr(Workspace, method, slow)
    return slow


@pytest.mark.parametrize("method", ["checkpoint", "undo"])
def test_trio_waits_for_a_change(
    opened: AsyncWorkspace, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    slow = _slow(monkeypatch, method)

    async def main() -> None:
        async def call() -> None:
            with pytest.raises(UnknownCheckpointError):
                await getattr(opened, method)()
            left.set()

        left = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(call)
            await trio.to_thread.run_sync(slow.entered.wait, _SECONDS)
            nursery.cancel_scope.cancel()
            with trio.CancelScope(shield=True):
                await trio.testing.wait_all_tasks_blocked()
                assert not left.is_set()
                slow.go.set()
        assert left.is_set()
        assert slow.done.is_set()

    trio.run(main)


@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("method", ["checkpoint", "undo"])
def test_asyncio_waits_for_a_change(
    opened: AsyncWorkspace, monkeypatch: pytest.MonkeyPatch, method: str, times: int
) -> None:
    slow = _slow(monkeypatch, method)

    async def main() -> None:
        task = asyncio.create_task(getattr(opened, method)())
        await asyncio.to_thread(slow.entered.wait, _SECONDS)
        for _ in range(times):
            task.cancel()
            for _ in range(10):
                await asyncio.sleep(0)
            assert not task.done()
        slow.go.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert slow.done.is_set()

    asyncio.run(main())


def test_the_end_of_the_loop_waits_for_a_change(
    opened: AsyncWorkspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = _slow(monkeypatch, "checkpoint")
    tasks: list[asyncio.Task[Checkpoint]] = []

    async def main() -> None:
        tasks.append(asyncio.create_task(opened.checkpoint()))
        await asyncio.to_thread(slow.entered.wait, _SECONDS)
        asyncio.get_running_loop().call_later(0, slow.go.set)

    asyncio.run(main())
    assert tasks[0].cancelled()
    assert slow.done.is_set()


def test_trio_leaves_a_look_to_itself(
    opened: AsyncWorkspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = _slow(monkeypatch, "log")

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(opened.log)
            await trio.to_thread.run_sync(slow.entered.wait, _SECONDS)
            nursery.cancel_scope.cancel()
        assert not slow.done.is_set()

    try:
        trio.run(main)
    finally:
        slow.go.set()
    assert slow.done.wait(_SECONDS)


def test_asyncio_leaves_a_look_to_itself(
    opened: AsyncWorkspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = _slow(monkeypatch, "log")

    async def main() -> None:
        task = asyncio.create_task(opened.log())
        await asyncio.to_thread(slow.entered.wait, _SECONDS)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not slow.done.is_set()
        slow.go.set()  # the loop ends when its threads do

    asyncio.run(main())
    assert slow.done.is_set()
