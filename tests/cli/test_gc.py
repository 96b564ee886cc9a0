"""`cowfs gc`, `forget`, `pin` and `unpin`, and what a daemon removes by itself, end to end."""

from __future__ import annotations

import errno
import os
import random
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command import Cowfs
from tests.mount.calls import eventually

MIB = 1 << 20


@pytest.fixture(params=["mounted", "unmounted"])
def history(cowfs: Cowfs, project: Path, needs_fuse: None, request: Any) -> Path:
    """Five checkpoints `c0` to `c4`, each with a file of its own of a mebibyte."""
    cowfs.in_process = True
    cowfs.ok("mount", project)
    cowfs.cwd = project
    for number in range(5):
        (project / "own").write_bytes(os.urandom(MIB))
        cowfs.ok("checkpoint", "-m", f"c{number}")
    if request.param == "unmounted":
        cowfs.cwd = cowfs.top
        cowfs.ok("unmount", project, "--no-apply")
        cowfs.cwd = project
    return project


def messages(cowfs: Cowfs) -> set[str]:
    rows = cowfs.ok("log", "-n", "0")["checkpoints"]
    return {row["message"] for row in rows if row["id"] != "@"}


def ids(cowfs: Cowfs) -> dict[str, str]:
    rows = cowfs.ok("log", "-n", "0")["checkpoints"]
    return {row["message"]: row["id"] for row in rows}


START = "before the first mount"


def test_rules(cowfs: Cowfs, history: Path) -> None:
    wanted = cowfs.ok("gc", "--dry-run", "--keep-last", "2")
    assert messages(cowfs) >= {"c0", "c4"}, "a dry run removes nothing"
    assert [row["message"] for row in wanted["removed"]] == ["c0", "c1", "c2"]
    assert {row["reason"] for row in wanted["removed"]} == {"no rule keeps it"}
    done = cowfs.ok("gc", "--keep-last", "2")
    assert done["dry_run"] is False
    assert done["removed"] == wanted["removed"]
    assert done["collected"] == wanted["collected"], "a dry run tells what is freed"
    assert done["collected"]["bytes"] > 3 * MIB
    assert messages(cowfs) == {START, "c3", "c4"}
    assert len(cowfs.run("show", f"{ids(cowfs)['c3']}:own").raw) == MIB
    again = cowfs.ok("gc", "--keep-last", "2")
    assert (again["removed"], again["collected"]["bytes"]) == ([], 0)
    assert cowfs.ok("verify")["problems"] == []


def test_the_default_policy_keeps_what_is_young(cowfs: Cowfs, history: Path) -> None:
    assert cowfs.ok("gc")["removed"] == []
    assert "removed 0 checkpoints; 6 are kept" in cowfs.says("gc")


def test_forget(cowfs: Cowfs, history: Path) -> None:
    known = ids(cowfs)
    gone = cowfs.ok("forget", known["c1"], known["c2"][:8])["removed"]
    assert [row["id"] for row in gone] == [known["c1"], known["c2"]]
    assert messages(cowfs) == {START, "c0", "c3", "c4"}
    assert cowfs.fails("show", f"{known['c1']}:own")["code"] == "COWFS_UNKNOWN_CHECKPOINT"
    assert cowfs.ok("gc", "--no-policy")["collected"]["bytes"] > 2 * MIB
    assert cowfs.fails("forget", "@")["code"] == "COWFS_USAGE"
    assert cowfs.fails("forget", known[START])["code"] == "COWFS_START_CHECKPOINT"
    assert cowfs.fails("forget", known["c3"], "no such")["code"] == "COWFS_UNKNOWN_CHECKPOINT"
    assert messages(cowfs) == {START, "c0", "c3", "c4"}, "all or none"


def test_pins(cowfs: Cowfs, history: Path) -> None:
    first = ids(cowfs)["c0"]
    pinned = cowfs.ok("pin", first, "--note", "the customer has it")["checkpoint"]
    assert (pinned["pinned"], pinned["note"]) == (True, "the customer has it")
    refused = cowfs.fails("forget", first)
    assert refused["code"] == "COWFS_PINNED"
    assert "the customer has it" in refused["message"]
    cowfs.ok("gc", "--keep-last", "1")
    assert messages(cowfs) == {START, "c0", "c4"}
    cowfs.ok("unpin", first)
    cowfs.ok("gc", "--keep-last", "1")
    assert messages(cowfs) == {START, "c4"}


def test_rules_that_cannot_be_read_remove_nothing(cowfs: Cowfs, history: Path) -> None:
    store = Path(cowfs.ok("status")["store"])
    (store / "config.toml").write_text("[retention]\nkeep_lasst = 5\n")
    assert cowfs.fails("gc")["code"] == "COWFS_CONFIG"
    assert cowfs.ok("gc", "--no-policy")["removed"] == []
    assert cowfs.fails("gc", "--no-policy", "--keep-last", "1")["code"] == "COWFS_USAGE"


def test_the_oldest_make_room_before_the_quota_is_met(
    cowfs: Cowfs, project: Path, needs_fuse: None
) -> None:
    """Ten times as much is written as the quota allows, with a checkpoint of each piece; a pinned
    one and the newest stay."""
    cowfs.in_process = True
    cowfs.ok("mount", project, "--quota", "24M")
    cowfs.cwd = project
    for number in range(60):
        (project / "own").write_bytes(os.urandom(MIB))
        cowfs.ok("checkpoint", "-m", f"c{number}")
        if number == 1:
            cowfs.ok("pin", "@~1")

        def has_room() -> bool:
            status = cowfs.ok("status")
            return bool(status["room_bytes"] > 2 * MIB)

        eventually(has_room)
    left = messages(cowfs)
    assert {"c1", "c59"} <= left
    assert "c0" not in left
    eventually(lambda: cowfs.ok("status")["collected"] is not None)  # the first one is finished
    collected = cowfs.ok("status")["collected"]
    assert collected["reason"] == "quota"
    assert collected["checkpoints"] > 0
    assert collected["freed_bytes"] > 0
    assert "to make room" in cowfs.says("status")
    assert len(cowfs.run("show", f"{ids(cowfs)['c1']}:own").raw) == MIB


def test_beside_writers_and_lookers(cowfs: Cowfs, project: Path, needs_fuse: None) -> None:
    """Files are written, replaced, synced and removed while checkpoints are removed and made; an
    open file of a removed checkpoint is an error, never other bytes."""
    cowfs.in_process = True
    cowfs.ok("mount", project)
    cowfs.cwd = project
    for number in range(8):
        for name in range(60):
            (project / f"f{name}").write_bytes(os.urandom(3000))
        (project / "big").write_bytes(bytes([number]) * MIB)
        cowfs.ok("checkpoint", "-m", f"c{number}")
    known = ids(cowfs)
    old = project / ".cowfs" / "checkpoints" / known["c1"]
    stop, written = threading.Event(), dict[str, bytes]()

    def write(worker: int) -> None:
        rng, count = random.Random(worker), 0
        while not stop.is_set():
            path = f"w{worker}-{count % 20}"
            data = rng.randbytes(rng.choice((10, 5000, 70_000)))
            if count % 3 == 2 and path in written:
                os.unlink(project / path)
                del written[path]
            else:
                with open(project / (path + "~"), "wb") as file:
                    file.write(data)
                    if count % 5 == 0:
                        os.fsync(file.fileno())
                os.replace(project / (path + "~"), project / path)
                written[path] = data
            count += 1

    workers = [threading.Thread(target=write, args=(n,)) for n in range(2)]
    with open(old / "big", "rb") as looked_at:
        for worker in workers:
            worker.start()
        try:
            cowfs.ok("forget", known["c1"], known["c2"])
            for keep in (5, 4, 3, 2):
                assert cowfs.ok("gc", "--keep-last", f"{keep}")["collected"]["versions"] > 0
                cowfs.ok("checkpoint", "-m", f"meanwhile {keep}")
        finally:
            stop.set()
            for worker in workers:
                worker.join()
        with pytest.raises(OSError, match=os.strerror(errno.ESTALE)):
            looked_at.read()
    for path, data in written.items():
        assert (project / path).read_bytes() == data
    left = messages(cowfs)
    assert "c7" not in left
    assert len(left & {f"c{n}" for n in range(8)}) == 0
    assert cowfs.ok("verify")["problems"] == []
