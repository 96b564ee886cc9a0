"""A sequence of operations whose state after each step is known."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from tests.mount.calls import write_file


def operations(top: Path) -> Iterator[str]:
    """Operations of many kinds, one after the other; yields after each that it has returned."""
    number = 0
    journal = os.open(top / "journal", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    while True:
        name = f"n{number}"
        (top / name).mkdir()
        yield "mkdir"
        write_file(top / name / "f", b"%d" % number)
        yield "file"
        os.write(journal, b"%09d\n" % number)
        yield "append"
        os.rename(top / name / "f", top / f"renamed{number}")
        yield "rename"
        os.symlink(name, top / f"link{number}")
        yield "symlink"
        if number >= 10:
            os.unlink(top / f"renamed{number - 10}")
            yield "unlink"
            os.rmdir(top / f"n{number - 10}")
            yield "rmdir"
        number += 1


def expected(steps: int) -> tuple[set[str], bytes]:
    """Names and journal after so many steps: the same operations on an empty set."""
    names, journal, done, number = {"journal"}, b"", 0, 0
    if steps == 0:
        return set(), b""
    while True:
        name = f"n{number}"
        for step in ("mkdir", "file", "append", "rename", "symlink", "unlink", "rmdir"):
            if step in ("unlink", "rmdir") and number < 10:
                continue
            if done == steps:
                return names, journal
            done += 1
            if step == "mkdir":
                names.add(name)
            elif step == "file":
                names.add(f"{name}/f")
            elif step == "append":
                journal += b"%09d\n" % number
            elif step == "rename":
                names.remove(f"{name}/f")
                names.add(f"renamed{number}")
            elif step == "symlink":
                names.add(f"link{number}")
            elif step == "unlink":
                names.remove(f"renamed{number - 10}")
            else:
                names.remove(f"n{number - 10}")
        number += 1
