"""Checking a workspace: every record, every block's hash, every reference, link counts, and that
what is mounted equals what is stored.

Nothing is changed. `docs/format.md`, "What verify checks", lists the checks by name. Tables are
read with cursors, in key order; memory holds the epochs, what belongs to one inode number, and 8
bytes for each block.

Threading: everything runs in the calling thread, which owns the workspace's reader.
"""

from __future__ import annotations

from collections.abc import Callable

from cowfs.service.verify.blocks import Blocks
from cowfs.service.verify.epochs import check_counters, check_history
from cowfs.service.verify.mounted import Comparison, Refresh
from cowfs.service.verify.others import check_base, check_changes, check_orphans
from cowfs.service.verify.report import Problem, Progress, Report
from cowfs.service.verify.scan import Scan
from cowfs.service.verify.tree import check_tree
from cowfs.service.workspace import ReadOnly
from cowfs.store.snapshot import Reader
from cowfs.volume.base import Base

__all__ = ["Problem", "Progress", "Refresh", "Report", "verify", "verify_store"]


def _silent(phase: str, done: int, total: int) -> None:
    return


def verify(
    workspace: ReadOnly,
    *,
    mountpoint: str | None = None,
    progress: Progress = _silent,
    refresh: Refresh | None = None,
    thorough: bool = False,
) -> Report:
    """Check a workspace's store, and its mount when `mountpoint` is given.

    refresh: called when the mount differs from the store; it has the daemon commit everything and
    returns a workspace with a new reader on the same store, which the caller closes. Without it,
    what changes while we look is reported as different, and base directories that nobody looked
    into yet are not compared. thorough: also read what only the base directory has.
    Raises OSError when the mount point cannot be opened.
    """
    report = verify_store(workspace.reader, workspace.base, progress=progress)
    if mountpoint is not None:
        comparison = Comparison(report, mountpoint, progress, thorough=thorough)
        try:
            comparison.run(workspace, refresh)
        finally:
            comparison.close()
    return report


def verify_store(reader: Reader, base: Base | None, *, progress: Progress = _silent) -> Report:
    """Check a store as one read transaction sees it; with `base`, unsealed base files too."""
    report = Report()
    scan = Scan(reader, base, report, progress)
    try:
        for check in _passes(scan):
            check()
    finally:
        scan.close()
    return report


def _passes(scan: Scan) -> list[Callable[[], None]]:
    blocks = Blocks(scan)
    return [
        lambda: check_history(scan),
        blocks.scrub,
        lambda: check_tree(scan),
        blocks.extents,
        lambda: check_changes(scan),
        lambda: check_base(scan),
        lambda: check_orphans(scan),
        scan.report_derived,
        lambda: check_counters(scan),
        blocks.unused,
    ]
