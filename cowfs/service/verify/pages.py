"""Checking the pages of a store's file, without LMDB, which trusts them.

Threading: everything runs in the calling thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

from cowfs.errors import DamagedRecordError
from cowfs.format import keys
from cowfs.service.verify.report import Progress, Report
from cowfs.service.verify.scan import Scan
from cowfs.store.env import ADDED, TABLES, LmdbError
from cowfs.store.lineage import Lineage
from cowfs.store.pages import (
    FREE_LIST,
    MAIN,
    META,
    Damage,
    DamagedFileError,
    PageCheck,
    meta_damage,
)
from cowfs.store.snapshot import Snapshot
from cowfs.store.sums import name_of

DATA_FILE = "data.mdb"
_INODES = 64
"""Inodes behind one damaged page that are named."""
_BY_INODE = ("inode", "link", "xattr", "extent", "dirent")
"""Tables whose keys begin with an inode number, or a content id, which mostly is the same."""


def verify_pages(store: Path, progress: Progress | None = None) -> Report:
    """What is wrong with the pages of a store that LMDB cannot open; no record is looked at."""
    report = Report()
    found, pages = _damage(store, progress)
    for damage in found:
        report.add("structure", damage.table, _thing(damage), damage.detail)
    report.checked["pages"] = pages
    report.skipped.append("records")
    return report


def check_pages(scan: Scan) -> list[Damage]:
    """Look at all pages, and note the tables that must not be read. `report_pages` tells of what
    was found, when it is known what the other tables say."""
    for table in TABLES:
        if table not in scan.reader.store.tables:
            if table in ADDED and not _had(scan, table):
                continue  # the store is older than the table
            scan.unreadable.add(table)
            scan.problem("structure", table, "table", "it is missing or cannot be found")
    found, scan.report.checked["pages"] = _damage(scan.reader.store.path, scan.progress)
    for damage in found:
        if damage.table in ("", MAIN):
            scan.unreadable.update(TABLES)
        elif damage.table not in (FREE_LIST, META):
            scan.unreadable.add(damage.table)
    return found


def _had(scan: Scan, table: str) -> bool:
    """Whether a table that is not there had records, for all that is known."""
    known = "meta" in scan.reader.store.tables
    return not known or scan.has_prefix("meta", name_of(table, b""))


def report_pages(scan: Scan, found: Iterable[Damage]) -> None:
    """Tell of damaged pages, and of what is hit, as far as sound tables know."""
    for damage in found:
        states = list[tuple[str, Lineage]]()
        paths = dict[bytes, None]()
        try:
            for ino in dict.fromkeys(islice(_behind(scan, damage), _INODES)):
                shown = [s for s in scan.history.states if Snapshot(scan.reader, s[1]).links(ino)]
                states += [state for state in shown if state not in states]
                paths |= dict.fromkeys(scan.paths(ino, shown))
        except (DamagedRecordError, LmdbError):
            pass  # as far as they know
        order = [state for state in scan.history.states if state in states]
        detail = damage.detail
        scan.problem("structure", damage.table, _thing(damage), detail, states=order, paths=paths)


def _damage(store: Path, progress: Progress | None) -> tuple[list[Damage], int]:
    """(all that was found, how many pages were looked at)."""
    check = PageCheck(store / DATA_FILE, progress)
    try:
        return list(check.run()), check.pages
    except DamagedFileError as error:
        return [Damage("", 0, str(error)), *meta_damage(store / DATA_FILE)], 0


def _thing(damage: Damage) -> str:
    if not damage.table:
        return DATA_FILE
    return f"page {damage.page}" if damage.page or damage.table == META else "table"


def _behind(scan: Scan, damage: Damage) -> Iterator[int]:
    """Inodes of which records lie behind a damaged page."""
    if damage.low == damage.high or not scan.readable("link"):
        return
    if damage.table in _BY_INODE:
        last = damage.high[:8] if damage.high is not None else b"\xff" * 8
        cursor = scan.cursor("link")
        first = damage.low[:8]
        while cursor.set_range(first) and cursor.key()[:8] <= last:
            ino = keys.unpack_id(cursor.key())
            yield ino
            first = keys.pack_id(ino + 1)
    elif damage.table == "block" and scan.readable("extent"):
        for key, digest in scan.reader.scan("extent"):
            if digest >= damage.low and (damage.high is None or digest < damage.high):
                content = keys.unpack_id(key)
                yield scan.owners.get(content, content)
