"""Records whose checksum is wrong: one flipped bit is found again by the checksum itself. What has
more of them is for all other parts of a repair a record that does not decode; what those leave is
marked as lost.

Threading: owned by the thread that repairs.
"""

from __future__ import annotations

from cowfs.format import keys
from cowfs.format.checksum import mended
from cowfs.format.copying import COPYING, copying_session
from cowfs.service.repair.bench import MARKED, REBUILT, RESTORED, Bench
from cowfs.service.repair.history import DROPPED
from cowfs.service.verify import LOST

_MARKED = ("dirent", "link", "xattr", "base", "origin")
"""Tables of which a damaged record stays what it is; inodes and extents have marks of their own."""
_SPARE = {
    b"base_root": "the next comparison takes epoch 0 for it",
    b"external": "what was adopted counts as changed by hand",
}
"""What `meta` can do without."""


def mend_bits(bench: Bench) -> bool:
    """Turn back single bits; whether there were any."""
    for table, key in bench.scan.falsified:
        checksum = bench.reader.store.tables[table].checksum
        found = mended(checksum, key, bench.scan.stored(table, key))
        if found is None:
            continue
        was, stored = found
        if was != key:
            if bench.get(table, was) is not None:
                continue
            bench.delete(table, key)
        bench.put(table, was, checksum.strip(was, stored))
        where = "key" if was != key else "record"
        detail = f"one bit of its {where} had flipped, as its checksum says"
        bench.did(RESTORED, table, keys.thing(table, was), detail)
    return bench.apply()


def mark_falsified(bench: Bench) -> bool:
    """Mark what nothing tells of any more, and drop what can be done without; whether there was
    any."""
    for table, key in bench.scan.falsified:
        if table == "meta" and key in _SPARE:
            bench.delete(table, key)
            bench.did(REBUILT, table, keys.thing(table, key), f"dropped: {_SPARE[key]}")
        elif table == "meta" and key.startswith(LOST):
            bench.delete(table, key)
            bench.did(REBUILT, table, key.hex(), "dropped: the mark of a loss")
        elif table == "meta" and key.startswith(COPYING):
            bench.delete(table, key)
            bench.did(REBUILT, table, f"copying {copying_session(key)}", DROPPED)
        elif table in _MARKED:
            mark = LOST + table.encode() + b"\0" + key
            if bench.get("meta", mark) is None:
                bench.put("meta", mark, bench.scan.stored(table, key))
                detail = "what it said is lost; using it stays an error"
                bench.did(MARKED, table, keys.thing(table, key), detail)
    return bench.apply()


def tell_of_missing(bench: Bench) -> None:
    """Say of which tables records are gone that nothing tells of. The sums are made anew then, so
    that it is said once."""
    for problem in bench.scan.report.problems:
        if problem.check in ("record-count", "record-sum"):
            detail = f"{problem.detail}; nothing says what that was"
            bench.did(MARKED, problem.table, problem.thing, detail)
