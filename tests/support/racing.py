"""A process that swaps names while something else works with them, and a directory that must not
change meanwhile."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.support.listing import Listing, difference, listing

# Exchanges (renameat2(2), RENAME_EXCHANGE) the path PARENT/*START*/NAME with TRAP, or PARENT/NAME
# when START is empty, as fast as it can. Ends when stdin is closed. Prints how often it did.
_SWAP = """
import ctypes, os, select, sys
parent, start, name, trap = map(os.fsencode, sys.argv[1:])
rename = ctypes.CDLL(None).renameat2
done = 0
sys.stdout.write("ready\\n"); sys.stdout.flush()
while not select.select([0], [], [], 0)[0]:
    tops = [b""]
    if start:
        tops = [entry for entry in os.listdir(parent) if start in entry]
    for top in tops:
        one = b"/".join(part for part in (parent, top, name) if part)
        for _ in range(50):
            if rename(-100, one, -100, trap, 2) == 0:
                done += 1
print(done)
"""


@contextlib.contextmanager
def swapping(parent: Path, name: str, trap: Path, *, within: str = "") -> Iterator[list[int]]:
    """`parent / name` and `trap` change places all the time while the block runs; with `within`
    the name in every directory in `parent` whose name has that text. Yields [how often], which is
    filled at the end."""
    command = [sys.executable, "-S", "-c", _SWAP, str(parent), within, name, str(trap)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd="/")
    assert process.stdout is not None
    count = [0]
    try:
        assert process.stdout.readline() == b"ready\n"
        yield count
        out, _ = process.communicate(timeout=30)
        count[0] = int(out)
    finally:
        process.kill()
        process.communicate()


class Outside:
    """A directory that nobody may change, with names as a test uses them in the workspace."""

    def __init__(self, top: Path, names: list[str], directories: list[str]) -> None:
        self.top = top
        top.mkdir()
        for name in names:
            (top / name).write_bytes(b"precious " + name.encode())
            (top / name).chmod(0o640)
            with contextlib.suppress(OSError):
                os.setxattr(top / name, "user.kept", b"1")
            os.utime(top / name, ns=(1, 1))
        for name in directories:
            (top / name).mkdir()
            (top / name / "within").write_bytes(b"precious")
        os.utime(top, ns=(2, 2))
        self._before = self._look()

    def _look(self) -> tuple[Listing, dict[str, int]]:
        found = listing(self.top)
        return found, {path: os.lstat(self.top / path).st_ctime_ns for path in found}

    def assert_untouched(self, *, links: bool = True) -> None:
        """Names, contents, owners, modes, times, links and attributes are as they were; without
        `links` but for the number of links, which changes with the names that others give a file,
        and the time of that change."""
        entries, times = self._look()
        before, times_before = self._before
        if not links:
            before, entries = (
                {path: entry._replace(nlink=0) for path, entry in side.items()}
                for side in (before, entries)
            )
            times = times_before
        assert difference(before, entries) == []
        assert times == times_before
