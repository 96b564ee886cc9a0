"""The command line of ``scripts/bench``."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import NoReturn

from benchmarks import epochs, files, source
from benchmarks.report import deliver
from benchmarks.runner import FilesRun, Pass, work_directory
from benchmarks.stats import Verdict
from benchmarks.system import BenchError, child_environment, describe_machine, machine_text
from benchmarks.targets import TARGETS
from benchmarks.workloads import WORKLOADS, Inputs, load_data, with_needs

FILES_EXAMPLES = """examples:
  scripts/bench files                                everything; about a quarter of an hour
  scripts/bench files --rounds 1 --only untar,cp-a --targets native,cowfs
  scripts/bench files --source ~/src/project --json report.json
"""
EPOCHS_EXAMPLES = """examples:
  scripts/bench epochs                               everything; some minutes
  scripts/bench epochs --sizes 1000,10000 --history 1,100 --json report.json
"""

Outcome = tuple[dict[str, object], str, Sequence[Verdict]]
"""The JSON document, the text, and the bars."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one benchmark and return the exit code.

    0: it ran, whatever it found; with ``--check`` 1 unless every bar is met. 1: it could not run.
    """
    arguments = parser().parse_args(argv)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _stop)
    run: Callable[[argparse.Namespace], Outcome] = arguments.run
    try:
        document, text, verdicts = run(arguments)
    except (BenchError, OSError) as error:
        print(f"bench: {error}", file=sys.stderr)
        if arguments.json == "-":
            failure = {"code": "BENCH_FAILED", "message": str(error), "exit_code": 1}
            print(json.dumps({"ok": False, "error": failure}))
        return 1
    deliver(document, text, arguments.json)
    return 1 if arguments.check and not all(verdict.met for verdict in verdicts) else 0


def _stop(number: int, frame: FrameType | None) -> NoReturn:
    """End in order: all mounts go on the way out, and no second signal stops that."""
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, signal.SIG_IGN)
    print("bench: stopped; cleaning up", file=sys.stderr)
    raise SystemExit(128 + number)


def parser() -> argparse.ArgumentParser:
    """The options, with examples."""
    top = argparse.ArgumentParser(prog="scripts/bench", description="Benchmarks of cowfs.")
    commands = top.add_subparsers(required=True, metavar="BENCHMARK")
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument(
        "--json", metavar="FILE", nargs="?", const="-", help="write a JSON document (- is stdout)"
    )
    shared.add_argument("--check", action="store_true", help="exit with 1 unless all bars are met")
    shared.add_argument(
        "--workdir",
        type=Path,
        default=Path("/var/tmp"),
        metavar="DIR",
        help="where to work: on the filesystem to compare with (default: %(default)s)",
    )

    shared.add_argument(
        "--timeout",
        type=_positive,
        default=600,
        metavar="SECONDS",
        help="when a step counts as hung and its daemon is killed (default: %(default)s)",
    )

    one = commands.add_parser(
        "files",
        parents=[shared],
        help="file workloads against a native directory and other FUSE filesystems",
        description="Runs file workloads on every target in turn and prints ratios to native.",
        epilog=FILES_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    one.add_argument("--rounds", type=_positive, default=5, metavar="N", help="default: 5")
    one.add_argument(
        "--only",
        type=_names([workload.name for workload in WORKLOADS]),
        metavar="W,...",
        help="of: " + ", ".join(workload.name for workload in WORKLOADS),
    )
    one.add_argument(
        "--targets",
        type=_names([target.name for target in TARGETS]),
        metavar="T,...",
        help="of: " + ", ".join(target.name for target in TARGETS),
    )
    one.add_argument("--source", type=Path, metavar="DIR|TAR", help="the project to unpack")
    one.add_argument(
        "--data-mib",
        type=_positive,
        default=256,
        metavar="N",
        help="size of the file that is written and read as a whole (default: 256)",
    )
    which = one.add_mutually_exclusive_group()
    which.add_argument("--pinned", action="store_true", help="only the pass on one CPU")
    which.add_argument("--free", action="store_true", help="only the pass on all CPUs")
    one.set_defaults(run=run_files)

    two = commands.add_parser(
        "epochs",
        parents=[shared],
        help="checkpoint and restore against tree size and history length",
        description="Times checkpoint and restore by size of the tree and number of checkpoints.",
        epilog=EPOCHS_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    two.add_argument(
        "--sizes",
        type=_counts,
        default=[1000, 10_000, 100_000],
        metavar="N,...",
        help="files in the tree (default: 1000,10000,100000)",
    )
    two.add_argument(
        "--history",
        type=_counts,
        default=[1, 1000],
        metavar="N,...",
        help="checkpoints made before (default: 1,1000)",
    )
    two.add_argument("--rounds", type=_positive, default=15, metavar="N", help="default: 15")
    two.set_defaults(run=run_epochs)
    return top


def run_files(arguments: argparse.Namespace) -> Outcome:
    """``bench files``."""
    wanted = arguments.only or [workload.name for workload in WORKLOADS]
    chosen = arguments.targets or [target.name for target in TARGETS]
    # Ratios are to native, so it always runs.
    targets = [t for t in TARGETS if t.name in chosen or t.name == files.BASE]
    steps = with_needs(wanted)
    measured = [step for step in steps if step.name in wanted]
    allowed = os.sched_getaffinity(0)
    # The highest number: on many machines the first CPU also serves the interrupts.
    passes = [Pass("pinned", frozenset({max(allowed)})), Pass("free", frozenset(allowed))]
    if arguments.pinned or arguments.free:
        passes = [one for one in passes if getattr(arguments, one.name)]
    with work_directory(arguments.workdir) as work:
        machine = describe_machine(work)
        archive = source.prepare(arguments.source, work)
        env = child_environment(work)
        inputs = Inputs(archive.path, archive.entries, arguments.data_mib, env)
        if "seq-write" in {step.name for step in steps}:
            load_data(inputs)
        result = FilesRun(targets, steps, passes, inputs, work, arguments.timeout).run(
            arguments.rounds
        )
    report = files.FilesReport(
        result, passes, measured, [target.name for target in targets], arguments.rounds
    )
    document = {
        "ok": True,
        "benchmark": "files",
        "machine": machine,
        "source": archive.document(),
        "data_mib": arguments.data_mib,
        **report.document(),
    }
    text = report.text(f"{archive.name}, {archive.entries} entries")
    return document, f"{machine_text(machine)}\n{text}", report.verdicts()


def run_epochs(arguments: argparse.Namespace) -> Outcome:
    """``bench epochs``."""
    with work_directory(arguments.workdir) as work:
        machine = describe_machine(work)
        scales = [
            epochs.Scale(files, checkpoints)
            for files in arguments.sizes
            for checkpoints in arguments.history
        ]
        report = epochs.measure(
            work, child_environment(work), scales, arguments.rounds, arguments.timeout
        )
    document = {"ok": True, "benchmark": "epochs", "machine": machine, **report.document()}
    return document, f"{machine_text(machine)}\n{report.text()}", report.verdicts()


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"not a positive number: {text!r}")
    return int(text)


def _counts(text: str) -> list[int]:
    return sorted({_positive(part) for part in text.split(",")})


def _names(known: Sequence[str]) -> Callable[[str], list[str]]:
    """A parser of comma-separated names, each one of *known*."""

    def parse(text: str) -> list[str]:
        names = text.split(",")
        for name in names:
            if name not in known:
                raise argparse.ArgumentTypeError(f"{name!r} is none of: {', '.join(known)}")
        return names

    return parse
