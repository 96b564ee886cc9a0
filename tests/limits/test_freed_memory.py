"""Memory that was freed is kept while there is work, and given back when there is none."""

from __future__ import annotations

import platform
import subprocess
import sys
from types import SimpleNamespace

import pytest

from cowfs.daemon import memory

MIB = 1 << 20
SCRIPT = """
import sys
from cowfs.daemon.memory import give_back, keep_freed

def resident():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) << 10 for line in status if line.startswith("RssAnon"))

keep_freed()
before = resident()
blocks = [bytearray(65536) for _ in range(320)]
used = resident()
del blocks
freed = resident()
give_back()
print(used - before, freed - before, resident() - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="mallopt(3) is glibc's")
def test_blocks_that_are_freed_stay_until_they_are_given_back() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True
    )
    used, freed, left = map(int, done.stdout.split())
    assert used > 19 * MIB
    assert freed > 19 * MIB
    assert left < 4 * MIB


def test_another_c_library_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_libc", SimpleNamespace())
    memory.keep_freed()
    memory.give_back()
