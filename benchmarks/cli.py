"""The command line of ``scripts/bench``."""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import NoReturn

from benchmarks import image
from benchmarks.checkpoints.tools import TOOLS
from benchmarks.report import deliver
from benchmarks.runner import work_directory
from benchmarks.runs import FULL, QUICK, RUNS, Options
from benchmarks.system import BenchError, child_environment, describe_machine, machine_text
from benchmarks.targets import TARGETS
from benchmarks.workloads import WORKLOADS

EXAMPLES = """examples:
  scripts/bench                                      everything, in full; hours
  scripts/bench --quick --svg pictures               everything, once; some minutes
  scripts/bench files --only untar,cp-a --targets native,cowfs --rounds 3
  scripts/bench files --source ~/src/project --json report.json
  scripts/bench epochs --sizes 1000,1000000 --image 32
  scripts/bench history --sizes 1000000 --history 10000 --image 64
  scripts/bench storage --tools cowfs,copies

exit code: 0 no bar is missed, 1 a bar is missed, 2 it could not run
"""
FAILED = 2
NO_JOURNAL = "this ext4 has no journal, so creating files is slow after deleting some"


def main(argv: Sequence[str] | None = None) -> int:
    """Run benchmarks and return the exit code: 0, 1 for a missed bar, 2 for a failure."""
    arguments = parser().parse_args(argv)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _stop)
    wanted = list(RUNS) if arguments.benchmark == "all" else [arguments.benchmark]
    outcomes = []
    try:
        with work_directory(arguments.workdir) as outer, _ground(outer, arguments.image) as work:
            machine = describe_machine(work)
            env = child_environment(work)
            options = settings(arguments)
            outcomes = [RUNS[name](options, work, env) for name in wanted]
        deliver(machine, machine_text(machine), outcomes, arguments.json, arguments.svg)
    except (BenchError, OSError) as error:
        print(f"bench: {error}", file=sys.stderr)
        if arguments.json == "-":
            failure = {"code": "BENCH_FAILED", "message": str(error), "exit_code": FAILED}
            print(json.dumps({"ok": False, "error": failure}))
        return FAILED
    return int(any(verdict.met is False for one in outcomes for verdict in one.verdicts))


def _stop(number: int, frame: FrameType | None) -> NoReturn:
    """End in order: all mounts go on the way out, and no second signal stops that."""
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, signal.SIG_IGN)
    print("bench: stopped; cleaning up", file=sys.stderr)
    raise SystemExit(128 + number)


@contextmanager
def _ground(outer: Path, wanted: str) -> Iterator[Path]:
    """Where to work: in *outer*, or in an image there if that is wanted, or needed and possible."""
    gib = int(wanted) if wanted.isdecimal() else 0
    if wanted == "auto" and image.has_no_journal(outer):
        if why := image.obstacle():
            print(f"WARNING: {NO_JOURNAL}, and {why}.", file=sys.stderr)
        else:
            print(f"{NO_JOURNAL}: working in an image, see --image", file=sys.stderr)
            gib = image.DEFAULT_GIB
    if not gib:
        yield outer
        return
    with image.mounted(outer, gib, child_environment(outer)) as work:
        yield work


def settings(arguments: argparse.Namespace) -> Options:
    """The options in force: what was given, over the preset."""
    preset = QUICK if arguments.quick else FULL
    given = {
        name: value
        for name, value in vars(arguments).items()
        if value is not None and name in Options.__dataclass_fields__
    }
    if "rounds" in given:
        others = ("checkpoint_rounds", "epoch_rounds", "history_rounds")
        given |= dict.fromkeys(others, given["rounds"])
    for name, own in (("sizes", "history_files"), ("history", "history_checkpoints")):
        if name in given:
            given[own] = given[name][-1]
    return preset.but(**given)


def parser() -> argparse.ArgumentParser:
    """The options, with examples."""
    top = argparse.ArgumentParser(
        prog="scripts/bench",
        description="Benchmarks of cowfs, beside a plain directory and comparable tools.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = top.add_argument
    add(
        "benchmark",
        nargs="?",
        default="all",
        choices=["all", *RUNS],
        help="files: workloads on filesystems. checkpoints: beside other tools. epochs: by size "
        "and history. storage: disk that real histories take. Default: all",
    )
    add("--quick", action="store_true", help="less of everything, for some minutes")
    add("--rounds", type=_positive, metavar="N", help="of everything (default: 5, epochs 15)")
    add("--json", metavar="FILE", help="write a JSON document (- is standard output)")
    add("--svg", type=Path, metavar="DIR", help="write pictures into this directory")
    add(
        "--workdir",
        type=Path,
        default=Path("/var/tmp"),
        metavar="DIR",
        help="where to work: on the filesystem to compare with (default: %(default)s)",
    )
    add(
        "--image",
        type=_image,
        default="auto",
        metavar="GIB|no|auto",
        help="work in a fresh ext4 of this size in WORKDIR; needs root (default: "
        f"{image.DEFAULT_GIB} where WORKDIR is on an ext4 without a journal, else no)",
    )
    add(
        "--timeout",
        type=_positive,
        default=900,
        metavar="SECONDS",
        help="when a step counts as hung and its daemon is killed (default: %(default)s)",
    )

    one = top.add_argument_group("files").add_argument
    workloads, targets = [w.name for w in WORKLOADS], [t.name for t in TARGETS]
    one("--only", type=_names(workloads), metavar="W,...", help="of: " + ", ".join(workloads))
    one("--targets", type=_names(targets), metavar="T,...", help="of: " + ", ".join(targets))
    one("--source", type=Path, metavar="DIR|TAR", help="the project to unpack")
    one("--data-mib", type=_positive, metavar="N", help="size of the large file (default: 256)")
    which = top.add_mutually_exclusive_group()
    for name, what in (("pinned", "one CPU"), ("free", "two CPUs")):
        which.add_argument(
            f"--{name}",
            dest="passes",
            action="store_const",
            const=(name,),
            help=f"files: only the pass on {what}",
        )

    two = top.add_argument_group("checkpoints, epochs, storage").add_argument
    tools = [tool.name.replace(" ", "-") for tool in TOOLS]
    two("--tools", type=_names(tools), metavar="T,...", help="of: " + ", ".join(tools))
    two(
        "--sizes",
        type=_counts,
        metavar="N,...",
        help="files (default: 1000,10000,100000; history: 1000000)",
    )
    two(
        "--history",
        type=_counts,
        metavar="N,...",
        help="checkpoints (default: 1,1000,10000; history: 10000)",
    )
    two("--changed", type=_counts, metavar="N,...", help="files (default: 100,1000,10000)")
    two("--dirty", type=_sizes, metavar="MIB,...", help="data (default: 0,1,100)")
    two("--states", type=_positive, metavar="N", help="storage: only so many of each history")
    return top


def _image(text: str) -> str:
    return text if text in ("auto", "no") else str(_positive(text))


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"not a positive number: {text!r}")
    return int(text)


def _counts(text: str) -> tuple[int, ...]:
    return tuple(sorted({_positive(part) for part in text.split(",")}))


def _sizes(text: str) -> tuple[int, ...]:
    return tuple(sorted({0 if part == "0" else _positive(part) for part in text.split(",")}))


def _names(known: Sequence[str]) -> Callable[[str], tuple[str, ...]]:
    """A parser of comma-separated names, each one of *known*."""

    def parse(text: str) -> tuple[str, ...]:
        names = tuple(text.split(","))
        for name in names:
            if name not in known:
                raise argparse.ArgumentTypeError(f"{name!r} is none of: {', '.join(known)}")
        return names

    return parse
