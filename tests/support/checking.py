"""Checking a store that no process writes."""

from __future__ import annotations

import importlib
from pathlib import Path

from cowfs.service.workspace import reading
from cowfs.volume.base import Base
from cowfs.volume.volume import open_volume


def check_store(store: Path, base_fd: int | None) -> None:
    """`cowfs verify` finds no problem, and the store opens. Raises AssertionError."""
    with reading(store, base_fd) as workspace:
        try:
            verify = getattr(importlib.import_module("cowfs.service.verify"), "verify", None)
        except ModuleNotFoundError:
            verify = None
        if verify is not None:
            report = verify(workspace)
            if report.problems:
                raise AssertionError("verify found:\n" + "\n".join(map(str, report.problems)))
    open_volume(store, Base(base_fd) if base_fd is not None else None).close()
