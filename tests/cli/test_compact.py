"""`cowfs compact` from the command line."""

from __future__ import annotations

import os
import random
from pathlib import Path

from cowfs.errors import CompactMountedError
from tests.cli.command import Cowfs


def test_a_mounted_workspace_is_not_compacted(cowfs: Cowfs, mounted: Path) -> None:
    ran = cowfs.run("compact", "--json")
    assert ran.code == CompactMountedError.exit_code
    assert ran.document["error"]["code"] == "COWFS_COMPACT_MOUNTED"
    assert f"cowfs unmount {mounted} --no-apply" in ran.document["error"]["hint"]


def test_compacted_and_mounted_again(cowfs: Cowfs, mounted: Path) -> None:
    for number in range(30):
        (mounted / f"f{number}").write_bytes(random.Random(number).randbytes(200_000))
    for number in range(10):
        (mounted / f"passing{number}").write_bytes(random.Random(1000 + number).randbytes(200_000))
    with open(mounted / "passing0", "rb") as file:
        os.fsync(file.fileno())  # all of them are in the store
    for number in range(10):
        (mounted / f"passing{number}").unlink()
    cowfs.ok("checkpoint", "--label", "full")
    (mounted / "f3").write_bytes(b"short")
    ((_, store),) = cowfs.mounts()
    cowfs.cwd = cowfs.top
    cowfs.ok("unmount", mounted, "--no-apply")
    data = Path(store) / "data.mdb"
    before = data.stat().st_blocks * 512
    document = cowfs.ok("compact", mounted)
    assert document["before"] == before
    assert document["after"] == data.stat().st_blocks * 512
    assert document["saved"] == before - document["after"] > 1_000_000
    again = cowfs.run("compact", mounted)
    assert again.code == 0
    assert again.out.startswith("nothing to gain")
    cowfs.ok("mount", mounted)
    assert (mounted / "f3").read_bytes() == b"short"
    cowfs.cwd = mounted
    cowfs.ok("restore", "full")
    assert (mounted / "f3").read_bytes() == random.Random(3).randbytes(200_000)
    cowfs.ok("verify")
