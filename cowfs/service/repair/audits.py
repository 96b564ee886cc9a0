"""The audit log: what cannot be read is set aside, and a process of which nothing is known takes
the place of one that is lost, so that what it did is still told.

Threading: owned by the thread that repairs.
"""

from __future__ import annotations

from cowfs.errors import DamagedRecordError
from cowfs.format import keys, records
from cowfs.format.audit import FIRST, AuditRecord, ProcessRecord
from cowfs.service.repair.bench import MARKED, Bench
from cowfs.service.verify.audits import audit_fault, process_fault

_CHECKS = {"record", "process", "audit", "audit-epoch", "audit-process", "record-count"}
_NOBODY = ProcessRecord(0, 0, 0, "", "", b"")


def mend_audit(bench: Bench) -> bool:
    """Whether anything was done."""
    tables = bench.reader.store.tables
    if not bench.checks & _CHECKS or not {"process", "audit"} <= tables.keys():
        return False
    known = _processes(bench)
    epochs, top = 0, max(bench.scan.history.epochs, default=0)
    for key, value in bench.reader.scan("audit"):
        try:
            record = records.decode(value, AuditRecord)
            fault = audit_fault(key, record, epochs, top)
        except DamagedRecordError:
            record, fault = None, ("record", "it cannot be read")
        if fault:
            bench.set_aside("audit", key, keys.thing("audit", key), fault[1])
        elif record is not None:
            epochs = record.epoch
            if record.process >= FIRST and record.process not in known:
                _stand_in(bench, record.process, "nothing tells who it was")
                known.add(record.process)
    return bench.apply()


def _processes(bench: Bench) -> set[int]:
    """The numbers of processes, those with a stand-in included."""
    found: dict[int, ProcessRecord | None] = {}
    for key, value in bench.reader.scan("process"):
        if len(key) != 8 or keys.unpack_id(key) < FIRST:
            bench.set_aside("process", key, key.hex(), "its key is no number of a process")
            continue
        try:
            found[keys.unpack_id(key)] = records.decode(value, ProcessRecord)
        except DamagedRecordError:
            found[keys.unpack_id(key)] = None
    for number, record in found.items():
        fault = process_fault(number, record, found) if record else "it cannot be read"
        if fault:
            bench.set_aside("process", keys.pack_id(number), f"{number}", fault)
            _stand_in(bench, number, fault)
    return set(found)


def _stand_in(bench: Bench, number: int, why: str) -> None:
    bench.put("process", keys.pack_id(number), records.encode(_NOBODY))
    bench.did(MARKED, "process", f"{number}", f"a process of which nothing is known: {why}")
