"""Exercisers of files on a mount: one in this process, or several processes at once.

As a program (`python -m tests.fuzz.files PATH SEED [PATH SEED START END]...`) it is one of those
processes: it obeys lines on its standard input, and answers each with a line.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import cowfs
from cowfs.types import BLOCK_SIZE
from tests.fuzz.exerciser import WINDOW, Exerciser, Fixed, WrongBytesError
from tests.fuzz.scratch import scratch
from tests.support.mounting import Mounted, mounted

_ROOT = Path(cowfs.__file__).resolve().parent.parent
_END_SECONDS = 10
_TURN = 40
"""Steps of each process between two barriers."""
_CHECKPOINT, _RESTORE, _REMOUNT, _CHECK = 0.02, 0.015, 0.002, 0.01


def run_alone(
    seed: int, steps: int, *, parent: Path | None = None, progress: Callable[[int], None]
) -> Exception | None:
    """One exerciser with checkpoints, restores and remounts in between; what went wrong.

    parent: a directory of an ordinary file system. progress is called with each step's number.
    """
    rng = random.Random(seed)
    with scratch(parent) as place:
        base = place / "base"
        base.mkdir()
        (base / "file").write_bytes(rng.randbytes(rng.choice((0, 1000, WINDOW - 70_000))))
        try:
            _alone(base, rng, steps, progress)
        except Exception as error:
            return error
    return None


def _alone(base: Path, rng: random.Random, steps: int, progress: Callable[[int], None]) -> None:
    with contextlib.ExitStack() as stack:
        life = stack.enter_context(contextlib.ExitStack())
        mount = life.enter_context(mounted(base))
        file = Exerciser(mount.mountpoint / "file", rng.randrange(1 << 30))
        stack.callback(file.close)
        checkpoints = [mount.checkpoint()]
        file.mark()
        for number in range(steps):
            progress(number)
            chance = rng.random()
            if chance < _CHECKPOINT:
                checkpoints.append(mount.checkpoint())
                file.mark()
            elif chance < _CHECKPOINT + _RESTORE:
                target = rng.randrange(len(checkpoints))
                mount.restore(checkpoints[target])
                file.back(target)
            elif chance < _CHECKPOINT + _RESTORE + _REMOUNT:
                file.close()
                _end(mount, kill=rng.random() < 0.5)
                life.close()
                mount = life.enter_context(mounted(base))
                file.open()
                file.check()
            elif chance < _CHECKPOINT + _RESTORE + _REMOUNT + _CHECK:
                file.check()
            else:
                file.step()
        file.check()


def _end(mount: Mounted, *, kill: bool) -> None:
    if not kill:
        mount.unmount()
        return
    fd = os.open(mount.mountpoint, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
    mount.kill()


# -- several processes --------------------------------------------------------------------------


class Process:
    """A process with exercisers of its own.

    files: (path, seed, part of a shared file or None).
    """

    def __init__(self, files: list[tuple[Path, int, Fixed | None]]) -> None:
        arguments = [json.dumps([str(path), seed, fixed]) for path, seed, fixed in files]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.fuzz.files", *arguments],
            cwd="/",
            env={**os.environ, "PYTHONPATH": str(_ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def tell(self, command: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(command + "\n")
        self._process.stdin.flush()

    def wait(self) -> None:
        """Its answer to the last command. Raises WrongBytesError."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        answer = json.loads(line) if line else f"a process ended with {self._process.wait()}"
        if answer != "ok":
            raise WrongBytesError(answer)

    def end(self) -> None:
        """Let it end; kill it when it does not."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()


def run_together(
    seed: int,
    turns: int,
    *,
    processes: int = 3,
    parent: Path | None = None,
    progress: Callable[[int], None],
) -> Exception | None:
    """Several processes at once; what went wrong.

    Each has files of its own and a part of one that all write. A checkpoint that is restored later
    is made while they pause; others while they work.
    """
    with scratch(parent) as place:
        base = place / "base"
        base.mkdir()
        try:
            _together(base, random.Random(seed), turns, processes, progress)
        except Exception as error:
            return error
    return None


def _together(
    base: Path, rng: random.Random, turns: int, processes: int, progress: Callable[[int], None]
) -> None:
    part = BLOCK_SIZE + 4096 + 1  # neither blocks nor pages are anybody's alone
    (base / "shared").write_bytes(rng.randbytes(part * processes))
    for number in range(processes * 2):
        (base / f"own{number}").write_bytes(rng.randbytes(rng.choice((0, 100_000))))
    with mounted(base) as mount, contextlib.ExitStack() as stack:
        crew: list[Process] = []
        for number in range(processes):
            files: list[tuple[Path, int, Fixed | None]] = [
                (base / f"own{number * 2 + which}", rng.randrange(1 << 30), None)
                for which in (0, 1)
            ]
            region = Fixed(number * part, (number + 1) * part)
            files.append((base / "shared", rng.randrange(1 << 30), region))
            crew.append(Process(files))
            stack.callback(crew[-1].end)
        checkpoints: list[str] = []
        for number in range(turns):
            progress(number)
            if not checkpoints or rng.random() < 0.4:
                checkpoints.append(mount.checkpoint())
                _all(crew, "mark")
            elif rng.random() < 0.4:
                target = rng.randrange(len(checkpoints))
                mount.restore(checkpoints[target])
                _all(crew, f"back {target}")
            with _working(crew, f"steps {_TURN}"):
                if rng.random() < 0.5:
                    mount.checkpoint()
        _all(crew, "check")


def _all(crew: list[Process], command: str) -> None:
    with _working(crew, command):
        pass


@contextlib.contextmanager
def _working(crew: list[Process], command: str) -> Iterator[None]:
    """All processes do something while the block runs, and are done at its end."""
    for process in crew:
        process.tell(command)
    yield
    for process in crew:
        process.wait()


def _serve(files: list[Exerciser], command: str) -> None:
    name, _, argument = command.partition(" ")
    if name == "steps":
        for _ in range(int(argument)):
            for file in files:
                file.step()
    for file in files:
        if name == "mark":
            file.mark()
        elif name == "back":
            file.back(int(argument))
        elif name == "check":
            file.check()


def main() -> None:
    """One of several processes; see the module."""
    files = []
    for argument in sys.argv[1:]:
        path, seed, fixed = json.loads(argument)
        files.append(Exerciser(Path(path), seed, Fixed(*fixed) if fixed else None))
    for line in sys.stdin:
        try:
            _serve(files, line.strip())
            answer = "ok"
        except Exception as error:
            answer = f"{type(error).__name__}: {error}"
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
