"""`cowfs compact` from the command line."""

from __future__ import annotations

import os
import random
import threading
from pathlib import Path

from cowfs.service.verify import verify
from cowfs.service.workspace import reading
from tests.cli.command import Cowfs
from tests.cli.terminal import terminal

MIB = 1 << 20


def test_while_it_is_mounted(cowfs: Cowfs, mounted: Path) -> None:
    (mounted / "kept").write_bytes(random.Random(1).randbytes(MIB))
    cowfs.ok("checkpoint", "--label", "first")
    (mounted / "kept").write_bytes(b"short")
    (mounted / "passing").write_bytes(random.Random(2).randbytes(6 * MIB))
    gone = cowfs.ok("checkpoint")["checkpoint"]["id"]
    (mounted / "passing").unlink()
    cowfs.ok("checkpoint")
    cowfs.ok("forget", gone)
    cowfs.ok("gc", "--no-policy")
    (mounted / "after").touch()
    cowfs.ok("checkpoint")
    cowfs.ok("log")  # waits for what the checkpoint adds after it was answered
    ((_, store),) = cowfs.mounts()
    data = Path(store) / "data.mdb"
    before = data.stat().st_blocks * 512
    done = cowfs.ok("compact")
    assert done["mounted"] is True
    assert done["complete"] is True
    assert done["before"] == before
    assert done["after"] == data.stat().st_blocks * 512
    assert done["saved"] == before - done["after"] > 5 * MIB
    assert cowfs.ok("status")["store_bytes"] == done["after"]
    with terminal(cowfs, "compact") as (shown, _):
        text = shown.rest()
    assert "giving back 1/1" in text
    # What a checkpoint adds to the store after it was answered may have made some pages free.
    assert "nothing to gain while it is mounted" in text or " are free again" in text
    assert (mounted / "kept").read_bytes() == b"short"
    cowfs.ok("restore", "first")
    assert (mounted / "kept").read_bytes() == random.Random(1).randbytes(MIB)
    assert cowfs.ok("verify")["problems"] == []


def test_others_go_on_meanwhile(cowfs: Cowfs, mounted: Path) -> None:
    """Who writes, and who reads the store in another process."""
    cowfs.in_process = True
    ((_, store),) = cowfs.mounts()
    written: dict[Path, bytes] = {}
    rng = random.Random(3)

    def work() -> None:
        for _ in range(80):
            path = mounted / f"w{rng.randrange(8)}"
            written[path] = rng.randbytes(rng.choice((100, 9000, 200_000)))
            with open(path, "wb") as file:
                file.write(written[path])
                file.flush()
                os.fsync(file.fileno())

    writer = threading.Thread(target=work)
    writer.start()
    freed = 0
    try:
        while writer.is_alive():
            freed += max(cowfs.ok("compact")["saved"], 0)
            with reading(Path(store), None) as workspace:
                assert verify(workspace).problems == []
    finally:
        writer.join()
    freed += cowfs.ok("compact")["saved"]
    assert freed > 0
    for path, content in written.items():
        assert path.read_bytes() == content
    cowfs.ok("restore", "@~1")


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
