"""The integrity tests that run inside the machine, as root and as an ordinary user.

An emulated machine is ten times slower than its host; so these are some of the tests, chosen for
what a fresh Debian with its own kernel could do differently, and the tests' own time limits are
raised.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.vm.machine import Machine

DATA_BYTES = 1 << 30
_PYTHON = "/opt/cowfs/.venv/bin/python"
_PYTEST = [_PYTHON, "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider"]
_PYTEST += ["-o", "timeout=900", "-o", "faulthandler_timeout=1000"]
_CRASH = [_PYTHON, "-P", "-m", "tests.crash"]
_SILENCE = 1200

_MOUNT = (
    "tests/mount/test_checkpoint.py::test_synced_data_survives_a_killed_daemon[fsync]",
    "tests/mount/test_lifecycle.py::test_what_a_killed_daemon_leaves_is_the_state_of_one_moment",
    "tests/mount/test_lifecycle.py::test_everything_is_the_same_after_a_remount",
    "tests/mount/test_restore.py::test_everything_comes_back_and_goes_again",
    "tests/verify/test_sound.py",
)
STEPS: tuple[tuple[str, list[str]], ...] = (
    (
        "root",
        [
            *_PYTEST,
            *_MOUNT,
            "tests/crash/test_power.py::test_power_cuts_under_a_mount",
            "tests/crash/test_power.py::test_a_file_system_that_does_not_flush_is_noticed",
        ],
    ),
    ("root", [*_CRASH, "--kills", "90"]),
    ("root", [*_CRASH, "--kind", "mount", "--kills", "6"]),
    ("cowfs", [*_PYTEST, *_MOUNT]),
    ("cowfs", [*_CRASH, "--kind", "mount", "--kills", "4"]),
)
"""(user, command), in the checkout."""


@dataclass
class Outcome:
    """passed, failed, skipped: tests. kills: of the crash tests. wrong: commands that failed."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0
    kills: int = 0
    seconds: float = 0.0
    wrong: list[str] = field(default_factory=list)

    def note(self, line: str) -> None:
        """Take a line of what pytest or the crash tests print."""
        if re.search(r"\d+ \w+.* in [\d.]+s", line):
            for number, what in re.findall(r"(\d+) (passed|failed|skipped|error)", line):
                what = "failed" if what == "error" else what
                setattr(self, what, getattr(self, what) + int(number))
        elif found := re.match(r"(\d+) kills in ", line):
            self.kills += int(found[1])


def run(machine: Machine, say: Callable[[str], None]) -> Outcome:
    """All steps in one machine, whichever fails. Raises VmError when it does not answer."""
    outcome, started = Outcome(), time.monotonic()
    machine.make_data()
    machine.boot()
    for user, words in STEPS:
        say(f"-- as {user}: {' '.join(words[3:])}")
        machine.ask("command", user=user, words=words, options="")
        lines: list[str] = []
        for word, value in machine.reports(_SILENCE):
            if word == "line":
                say(value)
                lines.append(value)
                outcome.note(value)
            elif value:
                last = "\n".join(lines[-20:])
                outcome.wrong.append(
                    f"as {user}, {' '.join(words[3:])} ended with {value}:\n{last}"
                )
    machine.cut()
    outcome.seconds = time.monotonic() - started
    return outcome
