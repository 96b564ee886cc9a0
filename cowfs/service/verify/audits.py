"""Checks of the audit log: who changed what.

Threading: owned by the thread that verifies.
"""

from __future__ import annotations

from cowfs.errors import DamagedRecordError
from cowfs.format import audit, keys, records
from cowfs.format.audit import FIRST, OUTSIDE, UNKNOWN, AuditRecord, ProcessRecord
from cowfs.service.verify.scan import Scan
from cowfs.types import NAME_MAX

_BITS = audit.CUT | audit.MODE | audit.OWNER | audit.TIMES | audit.XATTR | audit.REPLACED


def check_audit(scan: Scan) -> None:
    """Processes have parents, and operations were made by processes in epochs that there were."""
    damaged = len(scan.falsified)
    processes = _processes(scan) | {
        keys.unpack_id(key) for table, key in scan.falsified[damaged:] if table == "process"
    }
    last, epochs, top = 0, 0, max(scan.history.epochs, default=0)
    for key, value in scan.each("audit"):
        if len(key) != 8:
            scan.problem("record", "audit", key.hex(), f"its key has {len(key)} bytes, not 8")
            continue
        number = keys.unpack_id(key)
        try:
            record = records.decode(value, AuditRecord)
        except DamagedRecordError as error:
            scan.problem("record", "audit", f"{number}", error.details["detail"])
            continue
        for operation in record.operations:
            scan.use(operation.ino)
        if fault := _fault(record):
            scan.problem("audit", "audit", f"{number}", fault)
        elif record.time > number:
            detail = f"it is of the time {record.time}, after it was written"
            scan.problem("audit", "audit", f"{number}", detail)
        elif record.epoch < epochs or record.epoch > top:
            detail = f"its epoch {record.epoch} is not there, or before one of an older record"
            scan.problem("audit-epoch", "audit", f"{number}", detail)
        elif record.process not in processes and record.process not in (UNKNOWN, OUTSIDE):
            detail = f"there is no process {record.process}"
            scan.problem("audit-process", "audit", f"{number}", detail)
        if last < number and epochs < record.epoch <= top:
            last, epochs = number, record.epoch


def _processes(scan: Scan) -> set[int]:
    """The numbers of processes."""
    found: dict[int, ProcessRecord] = {}
    damaged = len(scan.falsified)
    for key, value in scan.each("process"):
        if len(key) != 8 or keys.unpack_id(key) < FIRST:
            scan.problem("record", "process", key.hex(), "its key is no number of a process")
            continue
        number = keys.unpack_id(key)
        try:
            found[number] = records.decode(value, ProcessRecord)
        except DamagedRecordError as error:
            scan.problem("record", "process", f"{number}", error.details["detail"])
    known = found.keys() | {keys.unpack_id(key) for _, key in scan.falsified[damaged:]}
    for number, record in found.items():
        parent = record.parent
        if parent and (parent >= number or parent not in known):
            detail = f"its parent {parent} does not exist or is not older"
            scan.problem("process", "process", f"{number}", detail)
        elif record.pid < 0 or record.uid < 0 or record.started < 0:
            detail = f"its pid is {record.pid}, its user {record.uid}, its start {record.started}"
            scan.problem("process", "process", f"{number}", detail)
        elif record.command and not record.command.endswith(b"\0") and len(record.command) < 512:
            detail = "its command line does not end with a NUL"
            scan.problem("process", "process", f"{number}", detail)
    return set(found)


def _fault(record: AuditRecord) -> str:
    """What cannot be so in a record by itself."""
    if not record.operations:
        return "it has no operations"
    places = range(len(record.directories))
    if any(
        path.startswith(b"/") or path.endswith(b"/") or b"\0" in path for path in record.directories
    ):
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
