"""Who removed a file, as far as the audit log tells.

Threading: as the reader.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cowfs.format.audit import REMOVED
from cowfs.service.audit.log import Log, Process
from cowfs.store.snapshot import Reader


@dataclass(frozen=True, slots=True)
class Removal:
    """process: who did it. time: ns since 1970."""

    process: Process
    time: int

    def to_json(self) -> dict[str, Any]:
        return {"process": self.process.to_json(), "time": self.time}


class Removals:
    """What epochs removed; each epoch's part of the log is read once."""

    def __init__(self, reader: Reader) -> None:
        self._log = Log(reader)
        self._epochs: dict[int, dict[int, tuple[int, int]]] = {}

    def of(self, epoch: int, ino: int) -> Removal | None:
        """The last removal of an inode's name in an epoch."""
        if epoch not in self._epochs:
            self._epochs[epoch] = self._read(epoch)
        found = self._epochs[epoch].get(ino)
        return Removal(self._log.process(found[0]), found[1]) if found else None

    def _read(self, epoch: int) -> dict[int, tuple[int, int]]:
        return {
            operation.ino: (record.process, record.time + operation.after)
            for record in self._log.of_epoch(epoch)
            for operation in record.operations
            if operation.code == REMOVED
        }
