"""Checking the pages of a store's file alone, without LMDB: of one that LMDB cannot open.

Threading: everything runs in the calling thread.
"""

from __future__ import annotations

from pathlib import Path

from cowfs.service.verify.report import Progress, Report
from cowfs.store.pages import DamagedFileError, PageCheck, meta_damage

_DATA_FILE = "data.mdb"


def verify_pages(store: Path, progress: Progress | None = None) -> Report:
    """What is wrong with the pages; no record is looked at."""
    report = Report()
    check = PageCheck(store / _DATA_FILE, progress)
    try:
        found = list(check.run())
    except DamagedFileError as error:
        found = meta_damage(store / _DATA_FILE)
        report.add("structure", "", _DATA_FILE, str(error))
    for damage in found:
        thing = f"page {damage.page}" if damage.page or damage.low == damage.high else "table"
        report.add("structure", damage.table, thing, damage.detail)
    report.checked["pages"] = check.pages
    report.skipped.append("records")
    return report
