"""What each benchmark does with its options: prepares, measures, and makes a report."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import bars, files
from benchmarks.checkpoints import latency, storage
from benchmarks.checkpoints.tools import TOOLS, Tool
from benchmarks.epochs import amounts, commands, scales
from benchmarks.epochs.workspace import Scale
from benchmarks.inputs import project
from benchmarks.inputs.histories import History, own_history, releases
from benchmarks.inputs.materials import Inputs
from benchmarks.report import Outcome
from benchmarks.runner import FilesRun, Pass, work_directory
from benchmarks.system import BenchError, Env
from benchmarks.targets import TARGETS
from benchmarks.workloads import WORKLOADS, with_needs
from benchmarks.workloads.data import load_data


@dataclass(frozen=True)
class Options:
    """Everything that can be chosen; the defaults are those of a full run."""

    timeout: float = 900.0
    """Seconds after which a step counts as hung."""
    # files
    rounds: int = 5
    only: Sequence[str] | None = None
    targets: Sequence[str] | None = None
    source: Path | None = None
    data_mib: int = 256
    passes: Sequence[str] = ("pinned", "free")
    # checkpoints, epochs, storage
    checkpoint_rounds: int = 5
    epoch_rounds: int = 15
    tools: Sequence[str] | None = None
    sizes: Sequence[int] = (1000, 10_000, 100_000)
    history: Sequence[int] = (1, 1000, 10_000)
    changed: Sequence[int] = (100, 1000, 10_000)
    dirty: Sequence[int] = (0, 1, 100)
    states: int | None = None
    # history
    history_rounds: int = 5
    history_files: int = 1_000_000
    history_checkpoints: int = 10_000

    def but(self, **given: Any) -> Options:
        """These options with some others."""
        return dataclasses.replace(self, **given)


FULL = Options()
QUICK = Options(
    rounds=1,
    targets=("native", "cowfs", "bindfs", "fuse-overlayfs"),
    data_mib=64,
    passes=("pinned",),
    checkpoint_rounds=3,
    epoch_rounds=5,
    sizes=(1000, 10_000),
    history=(1, 100),
    changed=(100, 1000),
    states=20,
    history_rounds=3,
    history_files=1000,
    history_checkpoints=200,
)


def run_files(options: Options, work: Path, env: Env) -> Outcome:
    """``bench files``."""
    wanted = options.only or [workload.name for workload in WORKLOADS]
    chosen = options.targets or [target.name for target in TARGETS]
    # Ratios are to native, so it always runs.
    targets = [target for target in TARGETS if target.name in (*chosen, bars.NATIVE)]
    steps = with_needs(wanted)
    measured = [step for step in steps if step.name in wanted]
    allowed = os.sched_getaffinity(0)
    # The highest number: on many machines the first CPU also serves the interrupts.
    two = sorted(allowed)[-2:]
    cpus = {"pinned": frozenset(two[-1:]), "free": frozenset(two)}
    passes = [Pass(name, cpus[name]) for name in options.passes]

    archive = project.prepare(options.source, work)
    inputs = Inputs(archive, env, options.data_mib)
    inputs.gather({step.material for step in steps if step.material})
    if "seq-write" in {step.name for step in steps}:
        load_data(inputs)
    result = FilesRun(targets, steps, passes, inputs, work, options.timeout).run(options.rounds)
    names = [target.name for target in targets]
    report = files.FilesReport(result, passes, measured, names, options.rounds)
    document = {
        "source": archive.document(),
        "data_mib": options.data_mib,
        **report.document(),
    }
    text = report.text(f"{archive.name}, {archive.entries} entries")
    return Outcome("files", document, text, report.verdicts(), report.charts())


def run_checkpoints(options: Options, work: Path, env: Env) -> Outcome:
    """``bench checkpoints``."""
    with work_directory(work) as directory:
        report = latency.measure(
            directory,
            env,
            _tools(options),
            options.sizes,
            options.checkpoint_rounds,
            options.timeout,
        )
    return Outcome("checkpoints", report.document(), report.text(), (), report.charts())


def run_epochs(options: Options, work: Path, env: Env) -> Outcome:
    """``bench epochs``."""
    wanted = scales.scales(options.sizes, options.history)
    most = options.sizes[-1]
    changed = [count for count in options.changed if count <= most] or [most]
    with work_directory(work) as directory:
        by_scale = scales.measure(directory, env, wanted, options.epoch_rounds, options.timeout)
        by_amount = amounts.measure(
            directory,
            env,
            most,
            changed,
            options.dirty,
            options.checkpoint_rounds,
            options.timeout,
        )
    return Outcome(
        "epochs",
        {"scales": by_scale.document(), "amounts": by_amount.document()},
        f"{by_scale.text()}\n\n{by_amount.text()}",
        [*by_scale.verdicts(), *by_amount.verdicts()],
        by_scale.charts(),
    )


def run_history(options: Options, work: Path, env: Env) -> Outcome:
    """``bench history``."""
    scale = Scale(options.history_files, options.history_checkpoints)
    with work_directory(work) as directory:
        report = commands.measure(directory, env, scale, options.history_rounds, options.timeout)
    return Outcome("history", report.document(), report.text(), report.verdicts(), {})


def run_storage(options: Options, work: Path, env: Env) -> Outcome:
    """``bench storage``."""
    found: list[History] = []
    problems = []
    with work_directory(work) as directory:
        for source in (releases, own_history):
            try:
                found.append(source(directory, env).first(options.states))
            except (BenchError, OSError) as error:
                problems.append(f"{source.__name__.replace('_', ' ')}: {error}")
        report = storage.measure(directory, env, _tools(options), found, options.timeout)
    text = "\n\n".join([report.text(), *(f"Not measured: {problem}" for problem in problems)])
    document = {**report.document(), "problems": problems}
    return Outcome("storage", document, text, report.verdicts(), report.charts())


def _tools(options: Options) -> list[type[Tool]]:
    names = options.tools or [tool.name.replace(" ", "-") for tool in TOOLS]
    return [tool for tool in TOOLS if tool.name.replace(" ", "-") in names]


RUNS: Mapping[str, Callable[[Options, Path, Env], Outcome]] = {
    "files": run_files,
    "checkpoints": run_checkpoints,
    "epochs": run_epochs,
    "history": run_history,
    "storage": run_storage,
}
