"""The bars: what the project wants to reach, and whether measurements reach it.

Each function makes rows out of measurements; a row that could not be measured says so and is
neither met nor missed. Ratios are of times unless a row says "of native's speed".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from benchmarks.stats import Verdict, geometric

SUBJECT = "cowfs"
NATIVE = "native"
PEERS = ("bindfs", "fuse-overlayfs")
"""FUSE filesystems in C, which the project wants to be ahead of."""
PINNED = "pinned"

METADATA = (
    "untar",
    "cp-a",
    "rm-rf",
    "git-add",
    "git-status",
    "git-checkout",
    "npm",
    "par2-create",
    "par8-create",
)
METADATA_MEAN = 4.0
METADATA_EACH = 8.0
PEERS_MEAN = 2.0
"""How many times faster than each of the peers, in the geometric mean."""

WARM_READS = ("grep-warm", "imports", "make-again", "make-noop", "pytest")
WARM_READS_EACH = 2.0
CACHED_READ = "seq-read"
CACHED_READ_REQUESTS = 16
"""Opening, closing and looking; not one for file data, of which there would be thousands."""

SPEEDS = {
    "seq-write": 0.5,
    "fio-write": 0.5,
    "seq-read-cold": 0.5,
    "fio-read-cold": 0.5,
    "seq-read": 0.95,
    "fio-read": 0.95,
    "sqlite": 0.4,
    "rand-write": 0.4,
    "fio-randwrite": 0.4,
}
"""Shares of native's speed."""

MARK_MS = 1.0
DIRTY_MIB = 100
DIRTY_TIMES = 2.0
"""A checkpoint with much dirty data, in times of a native fsync of as much: bounded by the disk."""
COMMAND = 2.5
"""The whole command, in times of starting the interpreter and ending it."""
RESTORE_MS = {100: 20.0, 10_000: 1000.0}
"""Changed files: milliseconds in the daemon."""
MEMORY_MIB = 150.0
MEMORY_FILES = 100_000
IDLE_PERCENT = 0.05
"""What ``top`` shows as 0.0."""
HISTORY_MS = 300.0
"""A whole command that reads history, in a tree of a million files with 10,000 checkpoints."""
GC_PAUSE_MS = 50.0
"""The longest that a collection holds up a program that uses the mount."""
STORAGE_PACK = 1.5
STORAGE_COPIES = 0.1

Value = Callable[[str, str, str, str], float | None]
"""``value(pass, workload, target, base)``: the ratio of two medians of times."""


def of_files(
    value: Value,
    requests: Callable[[str, str], float | None],
    passes: Sequence[str],
    targets: Sequence[str],
    titles: dict[str, str],
) -> list[Verdict]:
    """Bars of the *passes*, *targets* and workloads (*titles*, by name) that were to be measured.

    ``requests(pass, workload)``: how many requests cowfs answered, the median.
    """
    found: list[Verdict] = []
    peers = [peer for peer in PEERS if peer in targets]
    for one in passes:
        found += _metadata(value, one, peers, titles)
    if PINNED not in passes:
        return found
    for name in (name for name in WARM_READS if name in titles):
        ratio = value(PINNED, name, SUBJECT, NATIVE)
        found.append(
            Verdict.at_most(f"{titles[name]} (pinned)", ratio, WARM_READS_EACH, "x native")
        )
    if CACHED_READ in titles:
        count = requests(PINNED, CACHED_READ)
        what = f"{titles[CACHED_READ]}: requests"
        found.append(Verdict.at_most(what, count, CACHED_READ_REQUESTS, ""))
    for name, limit in SPEEDS.items():
        if name in titles:
            ratio = value(PINNED, name, SUBJECT, NATIVE)
            speed = 1 / ratio if ratio else None
            what = f"{titles[name]} (pinned)"
            found.append(Verdict.at_least(what, speed, limit, " of native's speed"))
    return found


def _metadata(
    value: Value, one: str, peers: Sequence[str], titles: dict[str, str]
) -> list[Verdict]:
    """Names and attributes: against native where pinned, against the peers in C in every pass."""
    wanted = [name for name in METADATA if name in titles]
    complete = len(wanted) == len(METADATA)
    if not wanted:
        return []
    found = []
    if one == PINNED:
        ratios = [value(one, name, SUBJECT, NATIVE) for name in wanted]
        if complete:
            mean = geometric(ratios)
            what = f"metadata, geometric mean ({one})"
            found.append(Verdict.at_most(what, mean, METADATA_MEAN, "x native"))
        worst, name = _extreme(ratios, wanted, titles, max)
        what = f"metadata, slowest: {name} ({one})"
        found.append(Verdict.at_most(what, worst, METADATA_EACH, "x native"))
    for peer in peers:
        # How many times as long the peer takes.
        ratios = [value(one, name, peer, SUBJECT) for name in wanted]
        if complete:
            what = f"metadata, {peer} / cowfs, geometric mean ({one})"
            found.append(Verdict.at_least(what, geometric(ratios), PEERS_MEAN, "x"))
        worst, name = _extreme(ratios, wanted, titles, min)
        what = f"metadata, {peer} / cowfs, least: {name} ({one})"
        found.append(Verdict.at_least(what, worst, 1.0, "x"))
    return found


def _extreme(
    ratios: Sequence[float | None],
    names: Sequence[str],
    titles: dict[str, str],
    pick: Callable[[Sequence[tuple[float, str]]], tuple[float, str]],
) -> tuple[float | None, str]:
    """The largest or the smallest ratio, and the title of its workload.

    One that is missing does not hide the others: the bar may still be missed by them.
    """
    known = [(r, titles[name]) for r, name in zip(ratios, names, strict=True) if r is not None]
    return pick(known) if known else (None, "none measured")
