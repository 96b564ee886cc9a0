"""Checks of copies of conversations that were on their way when the last process ended.

Threading: owned by the thread that verifies.
"""

from __future__ import annotations

from cowfs.errors import DamagedRecordError
from cowfs.format import records
from cowfs.format.copying import (
    COMMITTED,
    COPYING,
    CopyingRecord,
    copying_session,
    fault,
)
from cowfs.format.sessions import session_key
from cowfs.service.verify.scan import Scan


def check_copies(scan: Scan) -> None:
    """What is remembered of them makes sense, and those that were made have a session."""
    opened = scan.reader.store.tables["meta"].checksum.open
    for key in scan.reader.keys("meta", COPYING):
        name = copying_session(key)
        thing = f"copying {name}"
        try:
            value = opened(key, scan.stored("meta", key))
        except DamagedRecordError:
            continue  # `report_checksums` tells of it
        try:
            record = records.decode(value, CopyingRecord)
        except DamagedRecordError as error:
            scan.problem("copying", "meta", thing, error.details["detail"])
            continue
        if detail := fault(record):
            scan.problem("copying", "meta", thing, detail)
        elif record.state == COMMITTED and not scan.has("session", session_key(name)):
            scan.problem("copying", "meta", thing, "its session does not exist")
