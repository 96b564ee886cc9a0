"""Crash tests of any length: see `scripts/crash --help`."""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
from pathlib import Path

from tests.crash import kills, mounts
from tests.crash.kills import Tally
from tests.crash.knowledge import CrashError
from tests.support.mounting import fuse_missing

_EPILOG = """\
kinds:
  local  kills of a process that works on a store without FUSE: at every step that has a name
         (cowfs/store/steps.py), and at random moments
  mount  the same with a daemon and a mount

The same seed makes the same calls and the same kills at steps. A kill at a random moment comes
after the same call, but not to the microsecond.

examples:
  scripts/crash --kills 10000
  scripts/crash --kind mount --kills 100 --seed 7
"""


def main() -> int:
    """Kills until the number is reached or one finds something; the exit code is 1 then."""
    parser = argparse.ArgumentParser(
        prog="scripts/crash",
        description="Kill cowfs again and again, and compare what is left with what was promised.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--kills", type=int, default=500, help="default: 500")
    parser.add_argument("--seed", type=int, help="default: one of its own")
    parser.add_argument("--kind", choices=("local", "mount"), default="local")
    parser.add_argument("--verbose", action="store_true", help="a line for each life")
    options = parser.parse_args()
    if options.kind == "mount" and (reason := fuse_missing()):
        print(f"scripts/crash: {reason}", file=sys.stderr)
        return 2
    seed = random.randrange(1 << 32) if options.seed is None else options.seed
    print(f"scripts/crash --kind {options.kind} --kills {options.kills} --seed {seed}", flush=True)
    memory = Path("/dev/shm")
    parent = memory if os.access(memory, os.W_OK) else Path("/var/tmp")
    say = print if options.verbose else lambda text: None
    started = time.monotonic()
    try:
        if options.kind == "local":
            tally = kills.run(options.kills, seed, parent, say)
        else:
            tally = mounts.run(options.kills, seed, parent, say)
    except CrashError as error:
        print(error)
        return 1
    _show(tally, time.monotonic() - started)
    return 0


def _show(tally: Tally, seconds: float) -> None:
    print(
        f"{tally.kills} kills in {seconds:.0f} s, {tally.by_step.total()} at {len(tally.by_step)} "
        f"steps, {tally.random} at random moments; {tally.lives} lives ended in order"
    )


if __name__ == "__main__":
    sys.exit(main())
