"""Checking a workspace: every record, every block's hash, every reference, link counts, and that
what is mounted equals what is stored.

Nothing is changed. `docs/format.md`, "What verify checks", lists the checks by name. Tables are
read with cursors, in key order; memory holds the epochs, what belongs to one inode number, and 8
bytes for each block.

Threading: everything runs in the calling thread, which owns the workspace's reader.
"""

from __future__ import annotations

from collections.abc import Callable

from cowfs.errors import DamagedRecordError
from cowfs.service.verify.audits import check_audit
from cowfs.service.verify.blocks import Bad, Blocks
from cowfs.service.verify.checksums import report_checksums, report_sums
from cowfs.service.verify.copies import check_copies
from cowfs.service.verify.epochs import check_counters, check_history
from cowfs.service.verify.mounted import Comparison, Refresh
from cowfs.service.verify.others import check_base, check_changes, check_orphans
from cowfs.service.verify.pages import check_pages, report_pages
from cowfs.service.verify.report import Problem, Progress, Report
from cowfs.service.verify.scan import LOST, Scan
from cowfs.service.verify.sessions import check_sessions
from cowfs.service.verify.tree import check_tree
from cowfs.service.workspace import ReadOnly
from cowfs.store.snapshot import Reader
from cowfs.volume.base import Base

__all__ = [
    "LOST",
    "Bad",
    "Problem",
    "Progress",
    "Refresh",
    "Report",
    "Scan",
    "examine",
    "verify",
    "verify_store",
]


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
    if mountpoint is not None and any(p.check == "structure" for p in report.problems):
        report.skipped.append("mount")
    elif mountpoint is not None:
        comparison = Comparison(report, mountpoint, progress, thorough=thorough)
        try:
            comparison.run(workspace, refresh)
        except DamagedRecordError:  # of the branch, or of its lineage: reported above
            report.skipped.append("mount")
        finally:
            comparison.close()
    return report


def verify_store(reader: Reader, base: Base | None, *, progress: Progress = _silent) -> Report:
    """Check a store as one read transaction sees it; with `base`, unsealed base files too."""
    scan = Scan(reader, base, Report(), progress)
    try:
        damage = check_pages(scan)
        examine(scan)
        report_pages(scan, damage)
    finally:
        scan.close()
    return scan.report


def examine(scan: Scan) -> dict[bytes, Bad]:
    """Check the records of all tables that can be read; returns the blocks that cannot be read."""
    blocks = Blocks(scan)
    for name, needs, check in _passes(scan, blocks):
        if needs & scan.unreadable:
            scan.report.skipped.append(name)
        elif needs <= scan.reader.store.tables.keys():  # a store may be older than some
            check()
    return blocks.bad


_Pass = tuple[str, frozenset[str], Callable[[], None]]


def _passes(scan: Scan, blocks: Blocks) -> list[_Pass]:
    """(name, tables that it reads, what it does), in order."""
    history = {"epoch"}
    names = {"inode", "dirent", "link"}

    def step(name: str, tables: set[str], check: Callable[[], None]) -> _Pass:
        return name, frozenset(tables), check

    return [
        step("history", history, lambda: check_history(scan)),
        step("blocks", {"block"}, blocks.scrub),
        step(
            "tree",
            history | names | {"xattr", "change", "origin"},
            lambda: check_tree(scan),
        ),
        step("extents", history | names | {"extent", "block", "orphan"}, blocks.extents),
        step("changes", history | names | {"change"}, lambda: check_changes(scan)),
        step(
            "base",
            history | names | {"base", "origin", "hardlink", "extent"},
            lambda: check_base(scan),
        ),
        step("orphans", history | names | {"orphan"}, lambda: check_orphans(scan)),
        step(
            "sessions",
            history | {"session", "transcript", "piece", "context"},
            lambda: check_sessions(scan),
        ),
        step("copies", {"meta", "session"}, lambda: check_copies(scan)),
        step("audit", history | {"process", "audit"}, lambda: check_audit(scan)),
        step("derived", history | names, scan.report_derived),
        step("counters", history | names | {"meta"}, lambda: check_counters(scan)),
        step("unused", history | names | {"extent", "block", "orphan"}, blocks.unused),
        step("checksums", set(), lambda: report_checksums(scan)),
        step("sums", {"meta"}, lambda: report_sums(scan)),
        step(
            "thinned",
            history | names | {"extent", "block", "orphan", "checkpoint"},
            blocks.thinned.report_unfounded,
        ),
    ]
