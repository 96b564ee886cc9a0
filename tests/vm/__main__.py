"""The virtual machine from the command line: see `scripts/vm --help`."""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.crash.knowledge import CrashError
from tests.vm import cuts, states, suite
from tests.vm.image import cache, key, ready
from tests.vm.machine import choose_accel, machine
from tests.vm.trouble import VmError, install

_EPILOG = """\
what it does:
  tests (default)  boots the machine and runs a part of the tests in it, as root and as a user
  --cuts N         a workspace in the machine works and reports; QEMU is killed at random moments, N
                   times; each time the machine goes on from a saved state with the disk that is
                   left, and everything that was reported must be there
  --states M       QEMU records what is written to the disk; M states that a power cut may leave,
                   with writes reordered between flushes, are checked
  shell            a shell in the machine; the checkout is /opt/cowfs, an empty disk is /data

With --control what is tested is broken (a store that does not sync; ext4 without barriers), and
the command succeeds when that is noticed.

The machine's image is made once for a version of the locked packages, which needs root, 5 GB and
the network, in $COWFS_VM_CACHE (default: ~/.cache/cowfs-vm); delete that directory as you like.
Running needs no root, 1 GB of memory and 2 GB in $TMPDIR. The machine is emulated, and KVM is
used only where a machine was seen to start with it.

exit codes: 0 all is well, 1 something was lost or a test failed, 2 it could not be tried

examples:
  scripts/vm --install
  scripts/vm
  scripts/vm --cuts 20
  scripts/vm --states 50 --seed 7 --json
"""


def main() -> int:
    """Do what the command line says; the exit code."""
    parser = _parser()
    options = parser.parse_args()
    if (options.cuts is not None) + (options.states is not None) + (options.what != "tests") > 1:
        parser.error("one of --cuts, --states and shell")
    if options.control and options.cuts is None and options.states is None:
        parser.error("--control needs --cuts or --states")
    say = _quiet if options.json else _say
    try:
        if options.install:
            install()
            return 0
        answer = _do(options, say)
    except VmError as error:
        if options.json:
            print(json.dumps({"ok": False, "error": str(error), "hint": error.hint}))
        else:
            print(f"scripts/vm: {error}", file=sys.stderr)
            if error.hint:
                print(f"  {error.hint}", file=sys.stderr)
        return 2
    if options.json:
        print(json.dumps(answer))
    elif not answer["ok"]:
        print(f"scripts/vm: {answer['wrong']}", file=sys.stderr)
    return 0 if answer["ok"] else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="scripts/vm",
        description="Run the integrity tests, and cut the power, in a virtual Debian machine.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("what", nargs="?", choices=("tests", "shell"), default="tests")
    parser.add_argument("--cuts", type=_positive, metavar="N")
    parser.add_argument("--states", type=_positive, metavar="M")
    parser.add_argument("--control", action="store_true", help="break it, and see it noticed")
    parser.add_argument("--seed", type=int, help="of the calls and moments; default: a new one")
    parser.add_argument("--accel", choices=("auto", "tcg", "kvm"), default="auto")
    parser.add_argument("--install", action="store_true", help="install QEMU and what is needed")
    parser.add_argument("--build", action="store_true", help="only make the image, as root")
    parser.add_argument("--json", action="store_true", help="one document on standard output")
    return parser


def _positive(text: str) -> int:
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


def _say(text: str) -> None:
    print(text, flush=True)


def _quiet(text: str) -> None:
    pass


def _do(options: argparse.Namespace, say: Any) -> dict[str, Any]:
    """The document. Raises VmError."""
    image = ready(say)
    if options.build:
        say(str(image.place))
        return {"ok": True, "image": str(cache() / key())}
    parent = Path(tempfile.gettempdir())
    accel = choose_accel(image, parent, options.accel)
    say(f"the machine runs by {'KVM' if accel == 'kvm' else 'emulation'}")
    if options.what == "shell":
        with machine(image, parent, accel, suite.DATA_BYTES) as shell:
            shell.make_data()
            return {"ok": shell.shell() == 0, "wrong": "QEMU failed"}
    if options.cuts is None and options.states is None:
        with machine(image, parent, accel, suite.DATA_BYTES) as tests:
            outcome = suite.run(tests, say)
        say(
            f"{outcome.passed} tests passed, {outcome.failed} failed, {outcome.skipped} skipped, "
            f"{outcome.kills} kills; {outcome.seconds / 60:.1f} minutes"
        )
        return {"ok": not outcome.wrong, **asdict(outcome)}
    seed = random.randrange(1 << 32) if options.seed is None else options.seed
    size = states.DATA_BYTES if options.cuts is None else cuts.DATA_BYTES
    with machine(image, parent, accel, size) as saved:
        started = time.monotonic()
        saved.make_data()
        saved.boot()
        saved.save()
        times = {"boot_seconds": round(time.monotonic() - started, 1)}
        say(f"booted and saved in {times['boot_seconds']} s; seed {seed}")
        if options.cuts is None:
            found = _states(options, seed, saved, say)
        else:
            found = _cuts(options, seed, saved, say)
    return {**found, "seed": seed, "accel": accel, **times}


def _cuts(options: argparse.Namespace, seed: int, saved: Any, say: Any) -> dict[str, Any]:
    tally = cuts.Tally()
    wrong = ""
    try:
        cuts.run(options.cuts, seed, saved, say, tally, syncs=not options.control)
    except CrashError as error:
        wrong = str(error)
    each = tally.seconds / max(tally.cuts + tally.lives, 1)
    say(
        f"{tally.cuts} cuts, {tally.lives} lives that ended in order, {tally.calls} calls, "
        f"{tally.facts} durable facts reported, {each:.1f} s each"
    )
    return {**_verdict(options, wrong, say), **asdict(tally)}


def _states(options: argparse.Namespace, seed: int, saved: Any, say: Any) -> dict[str, Any]:
    wrong = ""
    barrier = "barrier=0" if options.control else ""
    outcome = states.run(options.states, seed, saved, say, barrier)
    wrong = "\n".join(outcome.bad)
    say(
        f"{outcome.states} states of {outcome.syncs} flushes; {outcome.lost} of "
        f"{outcome.writes} writes after the last flush were left out"
    )
    return {**_verdict(options, wrong, say), **asdict(outcome)}


def _verdict(options: argparse.Namespace, wrong: str, say: Any) -> dict[str, Any]:
    """A control is well when something was found wrong."""
    if options.control:
        say("noticed:\n" + wrong if wrong else "")
        return {"ok": bool(wrong), "noticed": wrong, "wrong": "" if wrong else "it was not noticed"}
    say("" if wrong else "nothing was lost")
    return {"ok": not wrong, "wrong": wrong}


if __name__ == "__main__":
    sys.exit(main())
