"""Extents that were given up, in states that do not say so; and checkpoints that say it in vain.

A checkpoint whose record was made anew does not know that it was thinned: it is told again, of any
path, since of which ones nothing tells. What else shows such an extent lost the block: as with any
block that is lost, reading it is an error, and it is never taken for thinned.

A checkpoint that says that it is thinned, and has all contents or lost them otherwise, says so no
more.

Threading: owned by the thread that repairs.
"""

from __future__ import annotations

import msgspec

from cowfs.format import keys, records
from cowfs.service.repair.bench import REBUILT, Bench
from cowfs.service.repair.things import mark_extent
from cowfs.service.verify.thinned import Thinned

_ANY_PATH = ("*",)


def mend_thinned(bench: Bench) -> bool:
    """Repair what `extent-thinned` and `checkpoint-thinned` report; whether anything was done."""
    if not bench.checks & {"extent-thinned", "checkpoint-thinned"}:
        return False
    checkpoints = {record.epoch: record for record in bench.scan.history.checkpoints}
    present = {*bench.scan.history.heads, *bench.scan.history.applied}
    thinned = Thinned(bench.scan)
    told: set[int] = set()
    for key, value in bench.reader.scan("extent"):
        if value != records.EXTENT_THINNED or len(key) != 24:
            continue
        content, number, epoch = keys.unpack_id(key), keys.extent_block(key), keys.epoch_of(key)
        owner = bench.scan.owners.get(content, content)
        unsaid, wrong = thinned.judged(content, number, epoch, owner)
        if wrong or not unsaid <= checkpoints.keys() - present:
            mark_extent(bench, key, value, "it was given up, and something else needs it")
        else:
            told |= unsaid
    for epoch in sorted(told):
        _say(bench, checkpoints[epoch], _ANY_PATH, "it shows contents that were thinned")
    if "checkpoint-thinned" in bench.checks:
        for record in thinned.unfounded():
            _say(bench, record, (), "nothing that it shows was thinned")
    return bench.apply()


def _say(
    bench: Bench, record: records.CheckpointRecord, patterns: tuple[str, ...], detail: str
) -> None:
    record = msgspec.structs.replace(record, thinned=patterns)
    bench.put("checkpoint", record.id.encode(), records.encode(record))
    bench.did(REBUILT, "checkpoint", record.id, detail)
