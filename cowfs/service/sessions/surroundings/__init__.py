"""What is around the files at a checkpoint: processes, their open files, ports, locks, environment.

Threading: for the threads that an `Engine` is for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cowfs.format.sessions import FileLock, ListeningPort, OpenFile, RunningProcess
from cowfs.service.engine import Engine


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The fields of a `ContextRecord` (format/sessions.py) that are about them."""

    environment: tuple[tuple[str, str], ...] = ()
    hidden: tuple[str, ...] = ()
    processes: tuple[RunningProcess, ...] = ()
    files: tuple[OpenFile, ...] = ()
    ports: tuple[ListeningPort, ...] = ()
    locks: tuple[FileLock, ...] = ()
    missing: tuple[str, ...] = ()


def look_around(engine: Engine, root: int, environment: Mapping[str, str]) -> Surroundings:
    """What the processes below `root` (0: nobody knows) have open and wait for, and who else has
    files of the workspace open. environment: of whoever asks, secrets and all."""
    return Surroundings()
