"""What an apply could not do exactly.

Threading: for the thread of the apply.
"""

from __future__ import annotations

import os


class Problems:
    """rows: {"path", "detail"}, in the order in which they were met."""

    def __init__(self) -> None:
        self.rows: list[dict[str, str]] = []

    def add(self, path: bytes, detail: str) -> None:
        self.rows.append({"path": os.fsdecode(path), "detail": detail})

    def once(self, path: bytes, detail: str) -> None:
        """What follows from another problem with the same path is not told as well."""
        if not any(row["path"] == os.fsdecode(path) for row in self.rows):
            self.add(path, detail)
