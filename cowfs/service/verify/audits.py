"""Checks of the audit log: who changed what.

Threading: owned by the thread that verifies.
"""

from __future__ import annotations

from collections.abc import Container

from cowfs.errors import DamagedRecordError
from cowfs.format import audit, keys, records
from cowfs.format.audit import FIRST, OUTSIDE, UNKNOWN, AuditRecord, ProcessRecord
from cowfs.service.verify.scan import Scan
from cowfs.types import NAME_MAX

_BITS = audit.CUT | audit.MODE | audit.OWNER | audit.TIMES | audit.XATTR | audit.REPLACED


def check_audit(scan: Scan) -> None:
    """Processes have parents, and operations were made by processes in epochs that there were."""
    processes = _processes(scan)
    epochs, top = 0, max(scan.history.epochs, default=0)
    for key, value in scan.each("audit"):
        thing = keys.thing("audit", key)
        try:
            record = records.decode(value, AuditRecord)
        except DamagedRecordError as error:
            scan.problem("record", "audit", thing, error.details["detail"])
            continue
        for operation in record.operations:
            scan.use(operation.ino)
        if fault := audit_fault(key, record, epochs, top):
            scan.problem(fault[0], "audit", thing, fault[1])
            continue
        epochs = record.epoch
        if record.process not in processes and record.process not in (UNKNOWN, OUTSIDE):
            detail = f"there is no process {record.process}"
            scan.problem("audit-process", "audit", thing, detail)


def _processes(scan: Scan) -> set[int]:
    """The numbers of processes, damaged ones included."""
    found: dict[int, ProcessRecord] = {}
    damaged, known = len(scan.falsified), set[int]()
    for key, value in scan.each("process"):
        if len(key) != 8 or keys.unpack_id(key) < FIRST:
            scan.problem("record", "process", key.hex(), "its key is no number of a process")
            continue
        number = keys.unpack_id(key)
        known.add(number)
        try:
            found[number] = records.decode(value, ProcessRecord)
        except DamagedRecordError as error:
            scan.problem("record", "process", f"{number}", error.details["detail"])
    known |= {keys.unpack_id(key) for _, key in scan.falsified[damaged:]}
    for number, record in found.items():
        if fault := process_fault(number, record, known):
            scan.problem("process", "process", f"{number}", fault)
    return known


def process_fault(number: int, record: ProcessRecord, known: Container[int]) -> str:
    """What cannot be so in the record of a process, "" when all can."""
    if record.parent and (record.parent >= number or record.parent not in known):
        return f"its parent {record.parent} does not exist or is not older"
    if min(record.pid, record.uid, record.started) < 0:
        return f"its pid is {record.pid}, its user {record.uid}, its start {record.started}"
    return ""


def audit_fault(key: bytes, record: AuditRecord, epochs: int, top: int) -> tuple[str, str] | None:
    """(check, what is wrong) with an audit record, None when nothing is. epochs: of the record
    before it. top: the greatest that there is."""
    if len(key) != 8:
        return "record", f"its key has {len(key)} bytes, not 8"
    if detail := _impossible(record):
        return "audit", detail
    if record.time > keys.unpack_id(key):
        return "audit", f"it is of the time {record.time}, after it was written"
    if record.epoch < epochs:
        return "audit-epoch", f"its epoch is {record.epoch}, that of the one before {epochs}"
    if record.epoch > top:
        return "audit-epoch", f"its epoch {record.epoch} does not exist"
    return None


def _impossible(record: AuditRecord) -> str:
    """What cannot be so in a record by itself."""
    if not record.operations:
        return "it has no operations"
    places = range(len(record.directories))
    if any(path[:1] == b"/" or path[-1:] == b"/" or b"\0" in path for path in record.directories):
        return "it has a directory that is no path"
    for operation in record.operations:
        if operation.code not in audit.CODES or operation.what & ~_BITS:
            return f"it has an operation {operation.code} with the bits {operation.what}"
        if operation.directory not in places or (
            operation.to_name and operation.to_directory not in places
        ):
            return "it has an operation in a directory that it does not name"
        if min(operation.after, operation.count, operation.size, operation.ino) < 0:
            return "it has an operation with a number below 0"
        if max(len(operation.name), len(operation.to_name)) > NAME_MAX:
            return "it has a name that is too long"
    return ""
