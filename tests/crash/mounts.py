"""Kills of a daemon under a real mount, at steps and at random moments.

The workload makes system calls in a process of its own; the daemon kills itself at the step that
its environment names, or is killed. The next life mounts again and compares what the mount shows.
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
import signal
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from cowfs.client.rpc import ConnectionFailedError
from cowfs.service.workspace import reading
from cowfs.store import steps
from tests.crash.forks import Child, Report, spin
from tests.crash.kills import Kill, Tally, at_random, base_tree
from tests.crash.knowledge import (
    CrashError,
    Found,
    Knowledge,
    Progress,
    check_workspace,
    checkpoint_ids,
    directory_view,
    matching,
    view_of_base,
)
from tests.crash.local import make_base
from tests.crash.states import Call, State, first_state
from tests.crash.workload import plan
from tests.mount.calls import opened
from tests.support.mounting import Mounted, MountRefusedError, mounted

STEPS = tuple(
    step
    for step in steps.STEPS
    if not step.startswith(("create.", "salvage.", "upgrade.", "compact.", "collect.", "copy."))
)
"""The steps at which a mounted workspace can be killed."""
_DIE_AT = "COWFS_DIE_AT"
_LIVES = 6
_OPERATIONS = 4
_END_SECONDS = 30
_GONE = {errno.ENOTCONN, errno.EIO, errno.ECONNABORTED, errno.ENODEV, errno.EBADF}
"""What system calls say when the daemon is gone (EIO: while a write was on its way)."""


class _GoneError(Exception):
    """The daemon does not answer any more."""


class Chain:
    """One workspace and what is known of it. in_place: mounted over its base."""

    def __init__(self, place: Path, *, in_place: bool) -> None:
        self.store, self.base = place / "store", place / "base"
        self.at = self.base if in_place else place / "view"
        make_base(self.base)
        self.at.mkdir(exist_ok=True)
        self.known = Knowledge([first_state(base_tree(self.base))])
        self.lives = 0

    def live(self, seed: int, kill: Kill, cut: Callable[[], None] = lambda: None) -> bool:
        """One more life; whether it was killed. Raises CrashError. `cut` is called just before
        the daemon is killed by us."""
        self.lives += 1
        os.environ[_DIE_AT] = f"{kill.step}:{kill.passes}" if kill.step else ""
        try:
            with mounted(self.base, self.store, self.at, check=False) as mount:
                with contextlib.suppress(_GoneError):
                    self._work(mount, seed, kill, cut)
                code = mount.process.wait(_END_SECONDS)
        except MountRefusedError as error:
            if error.error:
                raise CrashError(f"the workspace cannot be mounted: {error.error}") from None
            return True  # killed before it answered
        if code not in (0, -signal.SIGKILL):
            raise CrashError(f"the daemon ended with {code}:\n{mount.log()}")
        return code != 0

    def _work(self, mount: Mounted, seed: int, kill: Kill, cut: Callable[[], None]) -> None:
        with _gone_is_an_error():
            state = look(mount, self.known)
        calls = calls_of(state, seed, in_place=mount.in_place)
        progress = Progress(state, calls, self.known.ids, paged=True)
        child = Child(lambda report: make_calls(mount, calls, report))
        for word, *values in child.reports():
            progress.note([word, *values])
            if kill.due(progress):
                spin(kill.delay)
                cut()
                child.forgive()
                mount.process.kill()
        child.wait()
        self.known = progress.knowledge()


def calls_of(
    state: State, seed: int, *, in_place: bool, operations: int = _OPERATIONS, rounds: int = 1
) -> list[Call]:
    """The calls of one life, to its end in order; see `plan`."""
    calls = [*plan(state, seed, operations, rounds), ("create", b"last-%d" % seed)]
    return [*calls, ("unmount", in_place)]


def look(mount: Mounted, known: Knowledge) -> State:
    """What the mount shows is a state that may be, which is returned, and the store is sound.
    Raises CrashError."""
    with mount.client() as client:
        client.call("flush")
        base_fd = client.take_fd()
    assert base_fd is not None
    try:
        view = directory_view(str(mount.mountpoint))
        problems = mount.call("status")["health"]["problems"]
        with reading(mount.store, base_fd) as workspace:
            ids, branch = checkpoint_ids(workspace.reader), workspace.branch
            found = Found(view, view_of_base(base_fd), ids, branch.undo, branch.redo)
            state = matching(known, found)
            check_workspace(workspace, Knowledge([state], known.ids))
    finally:
        os.close(base_fd)
    if problems:
        raise CrashError(f"the workspace reports {problems}")
    return state


@contextlib.contextmanager
def _gone_is_an_error() -> Iterator[None]:
    """Raises _GoneError where a call says that the daemon is gone."""
    try:
        yield
    except ConnectionFailedError as error:
        raise _GoneError(str(error)) from None
    except OSError as error:
        if error.errno not in _GONE:
            raise
        raise _GoneError(str(error)) from None


def make_calls(mount: Mounted, calls: list[Call], report: Report) -> None:
    """Make calls, each reported before and after, as long as the daemon lives."""
    os.umask(0)
    ids = _ids(mount)
    for call in calls:
        report("begin")
        old = len(ids)
        try:
            with _gone_is_an_error():
                _call(mount, call, ids)
                if call[0] in _HISTORY:
                    mount.call("compact")
        except _GoneError:
            return
        if call[0] in _HISTORY:
            ids = _ids(mount)
        report("done", {index: ids[index] for index in range(old, len(ids))})


_HISTORY = frozenset(("checkpoint", "restore", "restore-paths", "undo", "redo", "apply"))


def _ids(mount: Mounted) -> list[str]:
    with reading(mount.store, None) as workspace:
        return checkpoint_ids(workspace.reader)


def _call(mount: Mounted, call: Call, ids: list[str]) -> None:
    name, *arguments = call
    if name in ("checkpoint", "undo", "redo"):
        mount.call(name)
    elif name == "restore":
        mount.restore(ids[arguments[0]])
    elif name == "restore-paths":
        index, path = arguments
        mount.call("restore", checkpoint=ids[index], paths=[os.fsdecode(path)])
    elif name == "apply":
        if problems := mount.call("apply")["problems"]:
            raise AssertionError(f"apply could not do {problems}")
    elif name == "unmount":
        mount.call("unmount", apply=arguments[0])
    else:
        path = os.path.join(os.fsencode(mount.mountpoint), arguments[0])
        _system_call(mount, name, path, arguments[1:])


def _system_call(mount: Mounted, name: str, path: bytes, rest: list[Any]) -> None:
    if name == "create":
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644))
    elif name == "mkdir":
        os.mkdir(path, 0o755)
    elif name == "symlink":
        os.symlink(rest[0], path)
    elif name in ("link", "rename"):
        getattr(os, name)(path, os.path.join(os.fsencode(mount.mountpoint), rest[0]))
    elif name == "fsync":
        with opened(path) as fd:
            os.fsync(fd)
    elif name == "write":
        fd = os.open(path, os.O_WRONLY)
        try:
            written = os.pwrite(fd, rest[1], rest[0])
        finally:
            os.close(fd)  # which waits until the daemon has it all
        assert written == len(rest[1])
    else:  # unlink, rmdir, truncate, chmod
        getattr(os, name)(path, *rest)


def run(
    kills: int,
    seed: int,
    parent: Path,
    say: Callable[[str], None] = lambda text: None,
    only: Sequence[str] = STEPS,
) -> Tally:
    """So many kills: every other one at a step, those of `only` in turn. Raises CrashError."""
    rng, tally = random.Random(seed), Tally()
    chain: Chain | None = None
    with tempfile.TemporaryDirectory(dir=parent, prefix="crash-") as top:
        for number in range(10 * kills + 100):
            if tally.kills >= kills:
                return tally
            if tally.kills % 2 == 0:
                kill = Kill(step=only[tally.by_step.total() % len(only)], passes=rng.choice((1, 2)))
            else:
                kill = at_random(rng, 0.01)
            if chain is None or chain.lives >= _LIVES:
                place = Path(tempfile.mkdtemp(dir=top))
                chain = Chain(place, in_place=rng.random() < 0.7)
            say(f"life {number}: {kill}")
            try:
                killed = chain.live(rng.randrange(1 << 32), kill)
            except CrashError as error:
                raise CrashError(f"seed {seed}, life {number}, {kill}: {error}") from None
            tally.lives += not killed
            tally.kills += killed
            if killed and kill.step:
                tally.by_step[kill.step] += 1
    raise CrashError(f"seed {seed}: only {tally.kills} kills in {tally.lives} lives")
