"""Several processes that create, stat and unlink small files at the same time.

Each is a process of its own, in a directory of its own, started and waiting before the clock
begins; what counts is the time from the word "go" to the end of the last one.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from benchmarks.inputs.materials import Inputs, python
from benchmarks.system import BenchError

FILES = 4000
"""In all, whatever the number of processes."""

WORKER = """
import os, sys
action, directory, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
if action == "create":
    os.makedirs(directory, exist_ok=True)
os.chdir(directory)
names = [f"file{number}" for number in range(count)]
content = b"x" * 100
print(flush=True)
sys.stdin.readline()
for name in names:
    if action == "create":
        descriptor = os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
        os.write(descriptor, content)
        os.close(descriptor)
    elif action == "stat":
        if os.stat(name).st_size != len(content):
            sys.exit("wrong size")
    else:
        os.unlink(name)
"""


def step(action: str, processes: int) -> Callable[[Path, Inputs], float]:
    """A workload: *processes* processes do *action* (create, stat, unlink), 4,000 files in all."""

    def run(directory: Path, inputs: Inputs) -> float:
        argv = [str(python()), "-I", "-S", "-c", WORKER, action]
        count = str(FILES // processes)
        with ExitStack() as stack:
            workers = []
            for number in range(processes):
                own = directory / f"parallel{processes}" / str(number)
                worker = subprocess.Popen(
                    [*argv, str(own), count],
                    env=inputs.env,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                )
                workers.append(stack.enter_context(worker))
                stack.callback(worker.kill)
            for worker in workers:
                assert worker.stdout
                worker.stdout.readline()
            start = time.perf_counter()
            said = _go(workers)
            seconds = time.perf_counter() - start
        if any(worker.returncode for worker in workers):
            raise BenchError(f"parallel {action}: {said}")
        return seconds

    return run


def _go(workers: list[subprocess.Popen[bytes]]) -> str:
    """Start all and wait for the last; returns what they complained of."""
    for worker in workers:
        assert worker.stdin
        try:
            worker.stdin.write(b"\n")
            worker.stdin.flush()
        except BrokenPipeError:
            pass  # it failed before; what it says follows
    return " ".join(worker.communicate()[1].decode(errors="replace")[-200:] for worker in workers)
