"""`cowfs bisect run`."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import click

from cowfs.cli import changes as texts
from cowfs.cli import context as opening
from cowfs.cli import output, running
from cowfs.cli.command import Checkpoint, command
from cowfs.cli.context import Context
from cowfs.cli.progress import ProgressLine
from cowfs.client import places
from cowfs.client.places import Place
from cowfs.errors import (
    BisectNotAncestorError,
    BisectStoppedError,
    BisectUndecidedError,
    CowfsError,
    UnknownCheckpointError,
    UsageError,
)
from cowfs.service.diff import diff as compare
from cowfs.service.exporting.renewal import remove
from cowfs.service.finding.bisecting import Bisection, Outcome, Verdict
from cowfs.service.finding.candidates import Candidates, line_of
from cowfs.service.textdiff import stat_of
from cowfs.service.timeline import Row, Timeline
from cowfs.service.volatile import matches
from cowfs.service.workspace import ReadOnly

_CANNOT_TELL = 125
_ENDS = 128
"""Exit codes of the command, as `git bisect run` understands them."""


@command(
    "bisect",
    examples=[
        ("cowfs bisect run -- make test", "from the present state back"),
        ("cowfs bisect run --good tests-pass -- pytest -x", "from a state that was good"),
        ("cowfs bisect run --bad 3f2a -- sh -c 'grep -q tax cart.py'", "ended by a checkpoint"),
    ],
)
@click.argument("action", type=click.Choice(["run"]), metavar="run")
@click.option("--good", type=Checkpoint(), metavar="CHECKPOINT", help="Where the command succeeds.")
@click.option(
    "--bad",
    type=Checkpoint(),
    metavar="CHECKPOINT",
    default="@",
    help="Where it fails; the present state if it is not given.",
)
@click.option("--fresh", is_flag=True, help="Write each checkpoint as a whole.")
@click.option(
    "--thinned",
    is_flag=True,
    help="Test checkpoints, too, that lost contents of volatile paths; these files are not there.",
)
@click.argument("words", metavar="-- COMMAND...", nargs=-1, required=True, type=click.UNPROCESSED)
def bisect(
    context: Context,
    action: str,
    good: str | None,
    bad: str,
    fresh: bool,
    thinned: bool,
    words: tuple[str, ...],
) -> None:
    """Find the checkpoint that broke something, by running a command on checkpoints.

    Exit code 0 of the command means good, 1 to 127 bad, 125 that it cannot be told there (the
    checkpoint is skipped); 128 and more, or a signal, ends it all. Without --good one is looked
    for, going back in steps that double.

    Each checkpoint is written to a temporary directory, where the command runs in the same
    directory below the top as you are in. The workspace is only read. All that a run changed there
    is undone before the next one, in which only what the checkpoints differ in is written; if
    something that the command started still runs, or with --fresh, everything is.
    """
    place = context.locate()
    runner = _Runner(context, place, list(words), thinned=thinned)
    with opening.reading(place) as workspace:
        end = workspace.point(bad)
        line = line_of(workspace, end)
        at = _index(workspace, line, good, end.name) if good is not None else None
        names = _names(workspace)
    with _temporary(place) as top, _signals_interrupt(), running.adopting() as left:
        runner.candidates = Candidates(top, fresh=fresh)
        runner.left = left
        runner.names = names
        search = Bisection(line, _short, runner.test, runner.say_step)
        outcome = search.run(at)
    _tell(context, place, outcome, runner.tested)


def _index(workspace: ReadOnly, line: list[str], good: str, bad: str) -> int:
    """Where the good end is in the line. Raises BisectNotAncestorError."""
    record = workspace.point(good).checkpoint
    if record is None or record.id not in line[1:]:
        raise BisectNotAncestorError(good=good, bad=bad)
    return line.index(record.id)


def _names(workspace: ReadOnly) -> dict[str, str]:
    """Label or message of each checkpoint."""
    line = Timeline(workspace, lambda _: None)
    return {r.id: r.label or r.message.partition("\n")[0] for r in line.states.newest_first()}


def _short(state: str) -> str:
    return "the present state" if state == "@" else state[:8]


class _Runner:
    """Runs the command on one state after the other. candidates: where they are. left: whether
    something that the command started still runs. tested: what came of it."""

    def __init__(self, context: Context, place: Place, words: list[str], *, thinned: bool) -> None:
        self._context = context
        self._place = place
        self._words = words
        self._thinned = thinned
        self._inside = context.inside(place, ".")
        self.candidates = Candidates(Path())
        self.left: Callable[[], bool] = lambda: True
        self.names: dict[str, str] = {}
        self.tested: list[dict[str, Any]] = []

    def say_step(self, left: int, steps: int) -> None:
        """As git does."""
        about = output.plural(steps, "step")
        self._say(f"{output.plural(left, 'checkpoint')} left, about {about}")

    def test(self, state: str) -> Verdict:
        """Raises BisectStoppedError."""
        about = self.names.get(state, "")
        self._say(output.printable(f"testing {_short(state)} {about}".rstrip()))
        verdict, code, detail = self._verdict(state)
        self.tested.append(
            {"checkpoint": state, "verdict": verdict.value, "exit_code": code, "detail": detail}
        )
        self._say(output.printable(f"{_short(state)} {_WORDS[verdict]} ({detail})"))
        return verdict

    def _verdict(self, state: str) -> tuple[Verdict, int | None, str]:
        try:
            directory, lacking = self._written(state)
            if lacking:
                return self._untested(state, lacking)
            where = directory / os.fsdecode(self._inside)
            if os.path.realpath(where) != os.fspath(where) or not where.is_dir():
                return self._untested(state, f"it has no directory {self._inside}")
            code = self._run(where)
        except UnknownCheckpointError:
            return self._untested(state, "it was removed meanwhile")
        except OSError as error:
            return self._untested(state, f"{error.filename or self._words[0]}: {error.strerror}")
        if code < 0 or code >= _ENDS:
            how = f"signal {-code}" if code < 0 else f"exit code {code}"
            raise BisectStoppedError(
                checkpoint=_short(state), detail=f"the command ended with {how}"
            )
        verdicts = {0: Verdict.GOOD, _CANNOT_TELL: Verdict.SKIP}
        return verdicts.get(code, Verdict.BAD), code, f"exit code {code}"

    def _untested(self, state: str, detail: str) -> tuple[Verdict, int | None, str]:
        """Something other than the command says that a state cannot be tested. Of the first one
        that is an error."""
        if not self.tested:
            raise BisectStoppedError(checkpoint=_short(state), detail=detail)
        return Verdict.SKIP, None, detail

    def _written(self, state: str) -> tuple[Path, str]:
        """Where a state is written, and what it lacks to be tested, "" for nothing. The store is
        not held open while the command runs."""
        with opening.reading(self._place) as workspace, ProgressLine() as line:
            line.show(f"writing {_short(state)}", at_once=True)
            point = workspace.point(state)
            directory, lost = self.candidates.write(workspace, point)
        patterns = point.checkpoint.thinned if point.checkpoint is not None else ()
        volatile = [os.fsencode(pattern) for pattern in patterns]
        thinned = [path for path in lost if matches(os.fsencode(path), volatile)]
        if unread := [path for path in lost if path not in thinned]:
            return directory, f"{unread[0]} cannot be read in it"
        if thinned and not self._thinned:
            return directory, f"it lost {thinned[0]}; --thinned tests it without"
        return directory, ""

    def _run(self, where: Path) -> int:
        """Run the command; its exit code, negative if a signal ended it. Raises OSError."""
        sys.stdout.flush()
        stdout = sys.stderr.fileno() if self._context.json else None
        environment = os.environ | {"PWD": os.fspath(where)}
        process = None
        try:
            with _held_back() as release:  # else one may come when the command runs, unknown to us
                process = subprocess.Popen(
                    self._words, cwd=where, env=environment, stdout=stdout, preexec_fn=release
                )
            code = process.wait()
        except BaseException:
            if process is not None:
                process.kill()
                process.wait()
            raise
        if self.left():
            self.candidates.leave()
        return code

    def _say(self, line: str) -> None:
        if not self._context.json:
            output.text(line)
            sys.stdout.flush()


_WORDS = {Verdict.GOOD: "is good", Verdict.BAD: "is bad", Verdict.SKIP: "is skipped"}


@contextlib.contextmanager
def _temporary(place: Place) -> Iterator[Path]:
    """A directory for what is tested, outside of the workspace. Raises UsageError."""
    above = os.path.realpath(tempfile.gettempdir())
    for top in {place.mountpoint, place.base, place.store}:
        if places.is_below(above, top):
            detail = f"the directory for temporary files, {above}, is inside {top}: set TMPDIR"
            raise UsageError(detail=detail, command="bisect")
    directory = Path(tempfile.mkdtemp(prefix="cowfs-bisect-", dir=above))
    try:
        yield directory
    finally:
        try:
            remove(directory)
        except OSError as error:
            output.note(f"{directory} is left: {error.strerror}")


_INTERRUPTS = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}


@contextlib.contextmanager
def _held_back() -> Iterator[Callable[[], None]]:
    """Signals that interrupt come after the block; gives what a new process calls to get them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _INTERRUPTS)

    def release() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

    try:
        yield release
    finally:
        release()


@contextlib.contextmanager
def _signals_interrupt() -> Iterator[None]:
    """What ends the command is an interruption, after which everything is cleaned up."""

    def interrupt(_number: int, _frame: object) -> NoReturn:
        raise KeyboardInterrupt

    numbers = _INTERRUPTS - {signal.SIGINT}  # that one does by itself
    before = {number: signal.signal(number, interrupt) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _tell(
    context: Context, place: Place, outcome: Outcome[str], tested: list[dict[str, Any]]
) -> None:
    with opening.reading(place) as workspace:
        line = Timeline(workspace, lambda _: None)
        rows = [row for state in outcome.culprits if (row := _row(line, workspace, state))]
        decided = len(outcome.culprits) == 1
        document: dict[str, Any] = {
            "culprit": rows[0].to_json() if decided and rows else None,
            "among": [row.to_json() for row in rows],
            "good": outcome.good,
            "tested": tested,
        }
        lines = [_describe(row) for row in rows]
        if decided:
            a, b = workspace.point(outcome.good), workspace.point(outcome.culprits[0])
            found = compare(workspace, a, b, failed=lambda _path, _error: None)
            stats = [(change, stat_of(change)) for change in found]
            document["changes"] = [{**c.to_json(), **s.to_json()} for c, s in stats]
            lines = [f"the first bad one is {lines[0]}", *texts.table(stats)] if lines else []
        if decided:
            context.answer(document, "\n".join(lines))
        else:
            failure: CowfsError = BisectUndecidedError(count=len(outcome.culprits))
            context.answer_failed(document, "\n".join(lines), failure)


def _row(line: Timeline, workspace: ReadOnly, state: str) -> Row | None:
    try:
        return line.row(workspace.point(state).lineage.head)
    except UnknownCheckpointError:
        return None


def _describe(row: Row) -> str:
    """A state in one line."""
    if row.kind == "head":
        return "the present state: what was done since the last checkpoint"
    words = [row.id[:8], output.age(row.time, time.time_ns()), output.printable(row.user)]
    if row.label:
        words.append(f"({row.label})")
    words.append(output.printable(row.message.partition("\n")[0]))
    return "  ".join(word for word in words if word)
