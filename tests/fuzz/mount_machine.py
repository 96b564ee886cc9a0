"""Random system calls on a mount and on an ordinary file system, with history in between.

The same calls are made on both; each outcome and, now and then, the whole tree must be the same.
A checkpoint records the ordinary tree, too; a restore makes it anew from the record. A run is
decided by its seed; when it fails, the steps up to there are a trace that runs without the seed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import shutil
import stat
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cowfs.client.rpc import RpcError
from cowfs.types import BLOCK_SIZE
from tests.fuzz.scratch import scratch
from tests.fuzz.side import Facts, Side, Step, ranges, read_range
from tests.fuzz.steps import Chooser
from tests.fuzz.twin import Record, Twin
from tests.mount.calls import Inotify
from tests.support.mounting import Mounted, mounted

_REFRESH = 4
"""After so many steps the chooser is told what paths there are."""
_SHOWN = 200
_ALL_EVENTS, _NO_FOLLOW = 0xFFF, 0x0200_0000
"""inotify_add_watch(2): IN_ALL_EVENTS, IN_DONT_FOLLOW."""
_LOOKING = frozenset(
    ("pread", "fstat", "flist", "map_read", "readlink", "getxattr", "listxattr", "list", "stat")
) | {"access"}


Shown = dict[str, tuple[Any, ...]]
"""As of `Side.exactly`."""


class MismatchError(AssertionError):
    """The mount is not what the ordinary file system is."""


@dataclass
class Moment:
    """A checkpoint: the twin's tree, and what the mount showed if it was looked at."""

    id: str
    record: Record
    shown: Shown | None


@dataclass
class History:
    moments: list[Moment]
    undo: list[Moment] = field(default_factory=list)
    redo: list[Moment] = field(default_factory=list)


class MountMachine:
    """A mount, its twin, and their history.

    Everything is below `place`. Use as a context manager; leaving it after no failure compares once
    more, ends the mount and verifies the store and the base.
    """

    def __init__(self, place: Path) -> None:
        self._stack = contextlib.ExitStack()
        # Apart, so that a path that leads out of the tree finds nothing on both sides.
        self._base = place / "mount" / "base"
        twin = place / "twin" / "base"
        self._base.mkdir(parents=True)
        make_base(self._base)
        shutil.copytree(self._base, twin, symlinks=True)
        make_base(twin, again=True)
        self.twin = Twin(str(twin))
        self.side = Side(str(self._base))
        self.base_was = _everything(self._base)
        self.dups: set[int] = set()
        self.unnamed: set[int] = set()
        self.watched: set[int] = set()
        self.vague: set[int] = set()
        """Inodes that something held during a restore without a handle: the daemon does not hear
        when it lets go, so their ctime stays the kernel's."""
        self._inotify: Inotify | None = None
        self.mounted: Mounted
        self._life = contextlib.ExitStack()
        self.history = History([Moment("@~0", self.twin.record(), None)])

    def __enter__(self) -> MountMachine:
        self._start()
        self.history.moments[0].id = self.mounted.checkpoint()
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: Any) -> None:
        try:
            if kind is None:
                self.compare()
        except BaseException as error:
            self._close_all()
            with contextlib.suppress(Exception):
                self._life.__exit__(type(error), error, error.__traceback__)
            raise
        self._close_all()
        if kind is not None:
            with contextlib.suppress(Exception):
                self._life.__exit__(kind, *rest)
            return
        self._life.close()
        self._check_base()

    def _start(self) -> None:
        self.vague = set()
        self._life = contextlib.ExitStack()
        self.mounted = self._life.enter_context(mounted(self._base))

    def _close_all(self) -> None:
        self._unwatch()
        self.side.close_all()
        self.twin.close_all()
        self.dups.clear()

    def _check_base(self) -> None:
        """Contract 6: only `apply` writes the base."""
        if _everything(self._base) != self.base_was:
            raise MismatchError("the base was changed")

    # -- steps ----------------------------------------------------------------------------------

    def do(self, step: Step) -> bool:
        """Make one step on both sides; whether it may have changed something.

        Raises MismatchError, and what a dead mount raises.
        """
        own: Callable[..., None] | None = getattr(self, "on_" + step[0], None)
        if own is not None:
            own(*step[1:])
            return str(step[0]) != "compare"
        expected, found = self.twin.do(step), self.side.do(step)
        if expected != found:
            raise MismatchError(f"{step!r}: {_short(found)}, should be {_short(expected)}")
        if step[0] == "dup":
            self.dups.add(step[1])
        elif step[0] == "tmpfile":
            self.unnamed.add(step[1])
        return str(step[0]) not in _LOOKING and not isinstance(expected, str)

    def on_compare(self) -> None:
        self.compare()

    def on_drop_caches(self) -> None:
        """Everything that the kernel can forget, machine-wide: seldom."""
        if os.geteuid() == 0:
            self.side.do(("syncfs",))
            Path("/proc/sys/vm/drop_caches").write_text("3")

    def on_watch(self, on: bool) -> None:
        """Watch everything that is there now: the kernel holds it, and a restore tells of it."""
        self._unwatch()
        if not on:
            return
        self._inotify = Inotify()
        for path in self.side.kinds():
            full = self.side.at(path)
            self._inotify.watch(full, _NO_FOLLOW | _ALL_EVENTS)
            self.watched.add(os.lstat(full).st_ino)

    def _unwatch(self) -> None:
        self.watched.clear()
        if self._inotify is not None:
            self._inotify.close()
            self._inotify = None

    def on_checkpoint(self, look: bool) -> None:
        shown = self._shown() if look else None
        checkpoint = self.mounted.checkpoint()
        self.history.moments.append(Moment(checkpoint, self.twin.record(), shown))
        self._nothing_changed("a checkpoint")

    def on_restore(self, back: int) -> None:
        moments = self.history.moments
        target = moments[-1 - back % len(moments)]
        before = self._before()
        before.id = self.mounted.restore(target.id)["rescue"]["id"]
        self.history.undo.append(before)
        self.history.redo = []
        self._arrive(target)

    def on_undo(self) -> None:
        self._back("undo", self.history.undo, self.history.redo)

    def on_redo(self) -> None:
        self._back("redo", self.history.redo, self.history.undo)

    def _back(self, call: str, source: list[Moment], other: list[Moment]) -> None:
        before = self._before()
        try:
            answer = self.mounted.call(call)
        except RpcError as error:
            if source:
                raise MismatchError(f"{call}: {error}, should succeed") from error
            return
        if not source:
            raise MismatchError(f"{call} succeeded, should have nothing to do")
        before.id = answer["rescue"]["id"]
        other.append(before)
        self._arrive(source.pop())

    def _before(self) -> Moment:
        for number, fd in list(self.side.handles.items()):
            # The twin could not keep an offset that is shared. A removed directory is dead for the
            # kernel: if a restore brings it back, it is another one, and the old one gives EIO.
            # Nor would a file without a name lose the chance of one.
            if number in self.dups | self.unnamed or _is_removed_directory(os.fstat(fd)):
                self.side.do(("close", number))
                self.twin.do(("close", number))
        self.dups.clear()
        self.unnamed.clear()
        return Moment("", self.twin.record(), self._shown())

    def _shown(self) -> Shown:
        """What the mount shows; without the ctimes that are the kernel's own."""
        return self._without_vague(self.side.exactly())

    def _without_vague(self, shown: Shown) -> Shown:
        """Of what is held during a restore the ctime is the kernel's as long as it is held
        (docs/conformance.md): 0 here."""
        held = {os.fstat(fd).st_ino for _, fd in self._descriptors()} | self.watched | self.vague
        return {
            path: (*row[:-2], 0, row[-1]) if row[-1] in held else row for path, row in shown.items()
        }

    def _arrive(self, target: Moment) -> None:
        """The mount shows `target`; have the twin show it, and compare."""
        self.history.moments.append(target)
        inos = {number: os.fstat(fd).st_ino for number, fd in self._descriptors()}
        self.vague |= self.watched
        for number, fd in self._descriptors():
            if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_PATH:
                self.vague.add(inos[number])
        shown = self._shown()
        named = {row[-1]: path for path, row in reversed(shown.items())}
        again = {number: named[ino] for number, ino in inos.items() if ino in named}
        missing = [path for path in again.values() if path not in target.record]
        if missing:
            raise MismatchError(f"after a restore there is {missing!r}")
        self.twin.rebuild(target.record, again)
        self.compare()
        if target.shown is not None:
            self._same_state(target.shown, shown)
        self._nothing_changed("a restore")

    def _same_state(self, right: Shown, found: Shown) -> None:
        """A restored tree is what it was, to the nanosecond."""
        right, vague = self._without_vague(right), {p for p, row in right.items() if not row[-2]}
        lines = [
            f"{path!r}: {found.get(path)}, should be {row}"
            for path, row in right.items()
            if found.get(path) != row
            and not (path in vague and path in found and found[path][:-2] == row[:-2])
        ]
        if lines:
            raise MismatchError("a restored tree is not what it was:\n" + "\n".join(lines))

    def _descriptors(self) -> Iterator[tuple[int, int]]:
        yield from self.side.handles.items()
        for number, (_, fd) in self.side.maps.items():
            yield -1 - number, fd

    def _nothing_changed(self, after: str) -> None:
        counts = self.mounted.call("status", flush=True)["changes"]
        if any(counts.values()):
            raise MismatchError(f"right after {after} status counts {counts}")

    def on_remount(self, how: str) -> None:
        self._close_all()
        if how == "kill":
            self._sync()
            self.mounted.kill()
        else:
            self.mounted.unmount(apply=how == "apply")
        self._life.close()
        if how == "apply":
            self._check_applied()
        else:
            self._check_base()
        self._start()

    def _sync(self) -> None:
        """Contract 4. Closing has sent all content and times; fsync(2) of anything makes it last,
        while FUSE does not pass syncfs(2) on."""
        fd = os.open(self.side.top, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def _check_applied(self) -> None:
        found = Side(str(self._base))
        _same_trees(self.twin, found)
        self.base_was = _everything(self._base)

    # -- comparing ------------------------------------------------------------------------------

    def compare(self) -> None:
        """Both trees, and what is open, show the same."""
        _same_trees(self.twin, self.side)
        for number, fd in self.twin.handles.items():
            own = self.side.handles[number]
            expected, found = (s.do(("fstat", number)) for s in (self.twin, self.side))
            if expected != found:
                raise MismatchError(f"fstat of {number}: {found}, should be {expected}")
            _same_content(fd, own, f"handle {number}")
        for number in self.twin.maps:
            step = ("map_read", number, 0, 1 << 30)
            if self.twin.do(step) != self.side.do(step):
                raise MismatchError(f"mapping {number} is not the same")


def _is_removed_directory(status: os.stat_result) -> bool:
    return stat.S_ISDIR(status.st_mode) and not status.st_nlink


def _same_trees(twin: Side, side: Side) -> None:
    expected, found = twin.look(), side.look()
    lines = [
        f"{path!r}: {name} is {is_now!r}, should be {right!r}"
        for path in sorted(expected.keys() & found.keys())
        for name, right, is_now in zip(Facts._fields, expected[path], found[path], strict=True)
        if right != is_now and name != "ino"
    ]
    lines += [f"{path!r}: is missing" for path in sorted(expected.keys() - found.keys())]
    lines += [f"{path!r}: should not be there" for path in sorted(found.keys() - expected.keys())]
    if lines:
        raise MismatchError("the trees differ:\n" + "\n".join(lines))
    for path, facts in expected.items():
        if stat.S_ISREG(facts.mode) and facts.group == path:
            with open(twin.at(path), "rb") as one, open(side.at(path), "rb") as two:
                _same_content(one.fileno(), two.fileno(), repr(path))


def _same_content(twin: int, side: int, what: str) -> None:
    """Two descriptors read the same, if they can be read."""
    try:
        wanted = ranges(twin)
        pieces = [(start, end, read_range(twin, start, end)) for start, end in wanted]
    except OSError:
        return
    for start, end, expected in pieces:
        found = read_range(side, start, end)
        if found != expected:
            at = next(
                (i for i, (a, b) in enumerate(zip(expected, found, strict=False)) if a != b),
                min(len(expected), len(found)),
            )
            raise MismatchError(
                f"content of {what} differs at {start + at}: "
                f"{found[at : at + 8].hex()} ({len(found)} bytes), "
                f"should be {expected[at : at + 8].hex()} ({len(expected)} bytes)"
            )


def _everything(base: Path) -> dict[str, tuple[Any, ...]]:
    """All that can be seen of a directory that is not mounted over, but for atimes."""
    side = Twin(str(base))
    record, exact = side.record(), side.exactly()
    return {path: (*row, record[path].data) for path, row in exact.items()}


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}... ({len(text)} characters)"


def make_base(base: Path, *, again: bool = False) -> None:
    """What lies in a directory before it is mounted. again: only what copying it has lost."""
    rng = random.Random(1)
    if not again:
        (base / "a/b/c").mkdir(parents=True)
        (base / "d").mkdir()
        (base / "a/a").write_bytes(rng.randbytes(BLOCK_SIZE + 9))
        (base / "a/b/a").write_bytes(rng.randbytes(3 * BLOCK_SIZE - 1))
        (base / "c").write_bytes(b"small")
        os.symlink("a", base / "e")
        os.setxattr(base / "c", "user.a", b"1")
    else:
        os.unlink(base / "d/b")
    os.link(base / "a/a", base / "d/b")
    for number, path in enumerate(("c", "a/a", "a/b/a", "a/b", "a", "d", "")):
        os.utime(base / path, ns=(number, 10**17 + number))


# -- running ------------------------------------------------------------------------------------


@dataclass
class Failure:
    """A run that failed: what with, the steps up to there, and which of them changed something."""

    error: BaseException
    trace: list[Step]
    changing: list[Step]

    def __str__(self) -> str:
        return f"{type(self.error).__name__}: {self.error}"


def _run(steps: Callable[[MountMachine], Iterator[Step]], parent: Path | None) -> Failure | None:
    trace: list[Step] = []
    changing: list[Step] = []
    with scratch(parent) as place:
        try:
            with MountMachine(place) as machine:
                for step in steps(machine):
                    trace.append(step)
                    if machine.do(step):
                        changing.append(step)
        except Exception as error:
            if changing[-1:] != trace[-1:]:
                changing += trace[-1:]
            return Failure(error, trace, changing)
    return None


def run(
    seed: int,
    steps: int,
    *,
    kind: str = "mount",
    parent: Path | None = None,
    progress: Callable[[int], None],
) -> Failure | None:
    """A run of `steps` random steps.

    kind: as of `Chooser`.
    parent: a directory of an ordinary file system for all of it. progress is called with the number
    of each step.
    """
    chooser = Chooser(random.Random(seed), kind, privileged=os.geteuid() == 0)

    def choose(machine: MountMachine) -> Iterator[Step]:
        for number in range(steps):
            if number % _REFRESH == 0:
                chooser.see(machine.twin)
            progress(number)
            yield chooser.step()

    return _run(choose, parent)


def replay(trace: list[Step], *, parent: Path | None = None) -> Failure | None:
    """Run a trace."""
    return _run(lambda machine: iter(trace), parent)


def reduce(
    failure: Failure, *, seconds: float, progress: Callable[[int], None], parent: Path | None = None
) -> Failure:
    """A shorter trace that fails in the same way: pieces are left out as long as it still fails.

    progress is called with the length of the trace.
    """
    end, best = time.monotonic() + seconds, failure

    def fails(trace: list[Step]) -> bool:
        nonlocal best
        for _ in range(2):  # what depends on the kernel's moment may fail the second time
            tried = replay(trace, parent=parent)
            if tried is not None and _kind(tried) == _kind(best):
                best = tried
                progress(len(best.trace))
                return True
        return False

    fails(best.changing)
    piece = max(len(best.trace) // 2, 1)
    while time.monotonic() < end:
        at, shorter = len(best.trace), False
        while at > 0 and time.monotonic() < end:
            start = max(at - piece, 0)
            shorter |= fails(best.trace[:start] + best.trace[at:])
            at = min(start, len(best.trace))
        if piece == 1 and not shorter:
            break
        piece = max(piece // 2, 1)
    return best


def _kind(failure: Failure) -> tuple[str, str]:
    """What is the same when the same defect is met by other steps."""
    text = str(failure.error)
    if isinstance(failure.error, MismatchError) and text.startswith("("):
        return type(failure.error).__name__, failure.trace[-1][0]
    return type(failure.error).__name__, text[:24]
