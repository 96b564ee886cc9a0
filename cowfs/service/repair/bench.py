"""What all parts of a repair share: the store inside one write transaction, and what was done.

Threading: owned by the thread that repairs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from cowfs.service.verify.report import text
from cowfs.service.verify.scan import LOST, Scan
from cowfs.store.env import Transaction

RESTORED, REBUILT, MARKED = "restored", "rebuilt", "marked"
_KEY_MAX = 511
"""LMDB's limit."""


@dataclass(frozen=True, slots=True)
class Action:
    """One thing that a repair does.

    how: "restored" (the bytes were found elsewhere), "rebuilt" (from other records that say the
    same) or "marked" (lost or set aside; `verify` does not report it as a problem again). table,
    thing: as in a `Problem`. paths: relative to the top.
    """

    how: str
    table: str
    thing: str
    detail: str
    paths: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {
            "how": self.how,
            "table": self.table,
            "thing": self.thing,
            "detail": self.detail,
            "paths": list(self.paths),
        }


class Bench:
    """A store under repair.

    Changes wait until `apply`, so that tables can be read with cursors while changes are found;
    `get` sees them at once. checks: names of the checks that report something.
    """

    def __init__(self, scan: Scan, txn: Transaction, actions: list[Action]) -> None:
        self.scan = scan
        self.reader = scan.reader
        self.checks = {problem.check for problem in scan.report.problems}
        if scan.falsified:
            self.checks.add("record")  # which they are, for all that reads them
        self._txn = txn
        self._actions = actions
        self._waiting: dict[tuple[str, bytes], bytes | None] = {}

    def get(self, table: str, key: bytes) -> bytes | None:
        """A value as it will be."""
        if (table, key) in self._waiting:
            return self._waiting[(table, key)]
        return self.reader.get(table, key)

    def put(self, table: str, key: bytes, value: bytes) -> None:
        """Write a record."""
        self._waiting[(table, key)] = value

    def delete(self, table: str, key: bytes) -> None:
        """Take a record out."""
        self._waiting[(table, key)] = None

    def set_aside(self, table: str, key: bytes, thing: str, why: str) -> None:
        """Take a record out that nothing can refer to; `meta` keeps it."""
        value = self.get(table, key)
        kept = LOST + table.encode() + b"\0" + key
        if value is not None and len(kept) <= _KEY_MAX:
            self.put("meta", kept, value)
        self.delete(table, key)
        self.did(MARKED, table, thing, f"set aside: {why}")

    def did(
        self, how: str, table: str, thing: str, detail: str, paths: Iterable[bytes] = ()
    ) -> None:
        """Say what the changes are good for."""
        self._actions.append(Action(how, table, thing, detail, tuple(text(p) for p in paths)))

    def apply(self) -> bool:
        """Make the changes that wait; whether there were any."""
        tables = self.reader.store.tables
        changed = bool(self._waiting)
        for (table, key), value in self._waiting.items():
            if value is None:
                self._txn.delete(key, db=tables[table])
            else:
                self._txn.put(key, value, db=tables[table])
        self._waiting.clear()
        return changed
