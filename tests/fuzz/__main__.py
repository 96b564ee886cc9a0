"""Long random runs: see `scripts/fuzz --help`."""

from __future__ import annotations

import argparse
import functools
import os
import pprint
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import cowfs
from tests.fuzz import files, mount_machine
from tests.support.mounting import fuse_missing

_ROOT = Path(cowfs.__file__).resolve().parent.parent
_MACHINES = {
    "volume": "tests/volume/test_machine.py",
    "collect": "tests/collecting/test_machine.py",
    "thin": "tests/collecting/test_thinning_machine.py",
    "sessions": "tests/sessions/test_machine.py",
}
_STEPS = {"mount": 800, "watch": 400, "apply": 400, "file": 2000} | dict.fromkeys(_MACHINES, 50)
_EXAMPLES = 400
_TURN = 100
"""Steps of a file's exerciser for each turn of several at once."""
_REDUCE_SECONDS = 180.0
_EPILOG = """\
kinds:
  mount    system calls on a mount and on an ordinary directory, compared
  watch    the same under a watcher (inotify) of everything
  apply    the same with remounts that write the head into the base
  file     content of files, by one process, then by several at once
  volume   the volume without FUSE and a model, by Hypothesis
  collect  which checkpoints are removed, and what others show after it
  thin     the same with volatile paths of old checkpoints, whose contents go
  sessions which are removed, and what checkpoints keep of conversations
  all      each in turn (default)

examples:
  scripts/fuzz --minutes 60                  for an hour, with seeds of its own
  scripts/fuzz --kind mount --seed 7         the round with this seed, once
"""


def main() -> int:
    """Rounds until the time is over or one fails; the exit code is 1 when one did."""
    parser = argparse.ArgumentParser(
        prog="scripts/fuzz",
        description="Random work on cowfs, for long. Stops at the first failure.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--minutes", type=float, help="go on for so long (default: 10, or once)")
    parser.add_argument("--seed", type=int, help="of the first round; the next has the next one")
    parser.add_argument("--kind", choices=(*_STEPS, "all"), default="all")
    parser.add_argument(
        "--steps", type=int, help="in each round (volume, collect, sessions: in each example)"
    )
    options = parser.parse_args()
    if options.kind not in _MACHINES and (reason := fuse_missing()):
        print(f"scripts/fuzz: {reason}", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    minutes = options.minutes
    if minutes is None:
        minutes = 10.0 if options.seed is None else 0.0
    kinds = list(_STEPS) if options.kind == "all" else [options.kind]
    seed = random.randrange(1 << 32) if options.seed is None else options.seed
    end, rounds, done = time.monotonic() + minutes * 60, 0, 0
    while not rounds or time.monotonic() < end:
        kind = kinds[rounds % len(kinds)]
        steps = options.steps or _STEPS[kind]
        print(f"{kind} --seed {seed} --steps {steps}", flush=True)
        if not _ROUNDS[kind](seed, steps):
            print(f"failed; again: scripts/fuzz --kind {kind} --seed {seed} --steps {steps}")
            return 1
        rounds += 1
        done += steps * _EXAMPLES if kind in _MACHINES else steps
        if rounds % len(kinds) == 0:
            seed += 1
    print(f"{rounds} rounds, up to {done} steps, no failure")
    return 0


def _progress(total: int, word: str) -> Callable[[int], None]:
    """Shows a number on a terminal, seldom enough."""
    if not sys.stdout.isatty():
        return lambda number: None

    def show(number: int) -> None:
        if number % 20 == 0:
            print(
                f"\r\033[K  {word} {number}{f' of {total}' if total else ''}", end="\r", flush=True
            )

    return show


def _mount(seed: int, steps: int, *, kind: str = "mount") -> bool:
    failure = mount_machine.run(seed, steps, kind=kind, progress=_progress(steps, "step"))
    if failure is None:
        return True
    print(f"{failure}\nafter {len(failure.trace)} steps; leaving out what it does not need ...")
    shorter = mount_machine.reduce(
        failure, seconds=_REDUCE_SECONDS, progress=_progress(0, "steps left:")
    )
    print(f"{shorter}\nby these steps (tests.fuzz.mount_machine.replay):")
    pprint.pprint(shorter.trace, width=100)
    return False


def _file(seed: int, steps: int) -> bool:
    error = files.run_alone(seed, steps, progress=_progress(steps, "step"))
    if error is None:
        turns = max(steps // _TURN, 1)
        error = files.run_together(seed, turns, progress=_progress(turns, "turn"))
    if error is not None:
        print(f"{type(error).__name__}: {error}")
    return error is None


def _machine(seed: int, steps: int, *, kind: str) -> bool:
    command = [sys.executable, "-m", "pytest", "-q", "-x", _MACHINES[kind]]
    command += [f"--hypothesis-seed={seed}"]
    chosen = {"COWFS_FUZZ_EXAMPLES": str(_EXAMPLES), "COWFS_FUZZ_STEPS": str(steps)}
    process = subprocess.run(
        command,
        cwd=_ROOT,
        env={**os.environ, **chosen},
        capture_output=True,
        text=True,
        check=False,
    )
    if process.returncode:
        print(process.stdout + process.stderr)
    return process.returncode == 0


_ROUNDS: dict[str, Callable[[int, int], bool]] = {
    "mount": _mount,
    "apply": functools.partial(_mount, kind="apply"),
    "watch": functools.partial(_mount, kind="watch"),
    "file": _file,
    **{kind: functools.partial(_machine, kind=kind) for kind in _MACHINES},
}


if __name__ == "__main__":
    sys.exit(main())
