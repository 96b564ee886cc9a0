"""The file workloads: functions that take a directory.

Each is a step of one sequence: ``untar`` leaves ``tree``, ``cp-a`` copies it to ``copy``, which
``rm-rf`` deletes. Dropping caches for one target drops them for all the others too, so the steps
that take the caches as they were left come before the first cold one, and every later one states
what it needs (:class:`~benchmarks.workloads.base.Cache`).
"""

from __future__ import annotations

from collections.abc import Collection

from benchmarks.workloads import builds, data, fio, git, packages, parallel, trees
from benchmarks.workloads.base import Cache, Workload

WARM, COLD = Cache.WARM, Cache.COLD
W = Workload

_PARALLEL = tuple(
    Workload(
        f"par{count}-{action}",
        f"{action}, {count} processes",
        parallel.step(action, count),
        # A stat of the fresh files would find them cached on some and not on others.
        WARM if action == "stat" else Cache.AS_LEFT,
        () if action == "create" else (f"par{count}-create",),
    )
    for count in (2, 8)
    for action in ("create", "stat", "unlink")
)

WORKLOADS = (
    W("untar", "untar", trees.untar, tool="tar"),
    W("cp-a", "cp -a", trees.copy, needs=("untar",), tool="cp"),
    W("find", "find + stat, warm", trees.find, WARM, ("untar",), "find"),
    W("grep-warm", "grep -r, warm", trees.grep, WARM, ("untar",), "grep"),
    W("git-add", "git init + add", git.add, needs=("untar",), tool="git"),
    W("git-status", "git status, warm", git.status, WARM, ("git-add",), "git"),
    W(
        "git-checkout",
        "git checkout, there and back",
        git.checkout,
        tool="git",
        material="branches",
        prepare=git.clone,
    ),
    W("rm-rf", "rm -rf", trees.remove, needs=("cp-a",), tool="rm"),
    W(
        "npm",
        "npm install, warm cache",
        packages.npm_install,
        tool="npm",
        material="npm",
        prepare=packages.npm_project,
    ),
    W("pip", "pip install, wheels", packages.pip_install, material="wheels"),
    W("imports", "python imports, warm", packages.imports, WARM, ("pip",), material="wheels"),
    W(
        "pytest",
        "pytest run, warm",
        packages.pytest,
        WARM,
        material="tested",
        prepare=packages.tested_project,
    ),
    W("make", "make -j2", builds.make, tool="make", material="c-project", prepare=builds.unpack),
    W("make-again", "make -j2, second run", builds.make, needs=("make",), prepare=builds.clean),
    W("make-noop", "make, nothing to do", builds.make_nothing, WARM, ("make-again",), "make"),
    *_PARALLEL,
    W("grep-cold", "grep -r, cold", trees.grep, COLD, ("untar",), "grep"),
    W("git-status-cold", "git status, cold", git.status, COLD, ("git-add",), "git"),
    W("seq-write", "sequential write + fsync", data.sequential_write),
    W("seq-read-cold", "sequential read, cold", data.sequential_read, COLD, ("seq-write",)),
    W("seq-read", "sequential read, warm", data.sequential_read, WARM, ("seq-write",)),
    W("rand-write", "4 KiB random writes + fsync", data.random_write, needs=("seq-write",)),
    W("fio-write", "fio write + fsync", fio.seq_write, tool="fio"),
    W("fio-read-cold", "fio read, cold", fio.seq_read, COLD, ("fio-write",), "fio"),
    W("fio-read", "fio read, warm", fio.seq_read, WARM, ("fio-write",), "fio"),
    W("fio-randread-cold", "fio 4 KiB randread, cold", fio.rand_read, COLD, ("fio-write",), "fio"),
    W("fio-randread", "fio 4 KiB randread, warm", fio.rand_read, WARM, ("fio-write",), "fio"),
    W("fio-randwrite", "fio 4 KiB randwrite + fsync", fio.rand_write, WARM, ("fio-write",), "fio"),
    W("sqlite", "1,000 SQLite transactions", data.sqlite),
)
"""In the order in which they run."""


def with_needs(names: Collection[str]) -> list[Workload]:
    """The steps to run, in order, when *names* are to be measured: these and what they need."""
    wanted = set(names)
    for workload in reversed(WORKLOADS):
        if workload.name in wanted:
            wanted.update(workload.needs)
    return [workload for workload in WORKLOADS if workload.name in wanted]
