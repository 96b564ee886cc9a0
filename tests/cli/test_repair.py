"""`cowfs verify --repair`: what it says, asks, and does."""

from __future__ import annotations

import os
import pty
import select
from pathlib import Path

import lmdb
import pytest

from cowfs.format import codec
from cowfs.store.env import TABLES
from tests.cli.command import Cowfs


def damage(store: Path) -> bytes:
    """Drop a link, and change a byte of the only block; returns its hash."""
    env = lmdb.open(str(store), max_dbs=len(TABLES), map_size=1 << 30)
    try:
        links, blocks = env.open_db(b"link"), env.open_db(b"block")
        with env.begin(write=True) as txn:
            with txn.cursor(db=links) as cursor:
                assert cursor.last()
                cursor.delete()
            (digest, value) = next(iter(txn.cursor(db=blocks)))
            txn.put(bytes(digest), bytes(value)[:-1] + b"\xff", db=blocks)
            return bytes(digest)
    finally:
        env.close()


@pytest.fixture
def damaged(cowfs: Cowfs, mounted: Path) -> tuple[Path, bytes]:
    """An unmounted workspace whose store is damaged: its directory, the damaged block's hash."""
    (mounted / "new").write_bytes(b"new content\n")
    cowfs.ok("checkpoint")
    ((_, store),) = cowfs.mounts()
    cowfs.cwd = cowfs.top
    cowfs.ok("unmount", mounted, "--no-apply")
    return mounted, damage(store)


def test_a_mounted_workspace_is_not_repaired(cowfs: Cowfs, mounted: Path) -> None:
    error = cowfs.fails("verify", "--repair", "--yes")
    assert error["code"] == "COWFS_REPAIR_MOUNTED"
    for command in (f"unmount {mounted} --no-apply", f"-C {mounted} verify --repair"):
        assert f"`cowfs {command}`" in error["hint"]


def test_verify_says_what_a_repair_needs(cowfs: Cowfs, damaged: tuple[Path, bytes]) -> None:
    """What to type, one after the other, mounted or not."""
    directory, _ = damaged
    found = cowfs.run("-C", directory, "verify", "--json")
    assert found.document["to_repair"] == [f"cowfs -C {directory} verify --repair"]
    cowfs.ok("mount", directory)
    told = cowfs.run("-C", directory, "verify", "--json").document["to_repair"]
    assert told == [
        f"cowfs unmount {directory} --no-apply",
        f"cowfs -C {directory} verify --repair",
        f"cowfs mount {directory}",
    ]
    cowfs.ok("unmount", directory, "--no-apply")
    told[1] += " --yes"  # nobody is asked here
    for command in told[1:]:
        assert cowfs.run(*command.split()[1:]).code == 0
    assert cowfs.run("-C", directory, "verify", "--json").document["problems"] == []


def test_a_file_with_damaged_pages(cowfs: Cowfs, mounted: Path) -> None:
    """One that LMDB does not open: it is said what to type, and that helps."""
    (mounted / "new").write_bytes(b"new content\n")
    cowfs.ok("checkpoint")
    ((_, store),) = cowfs.mounts()
    cowfs.cwd = cowfs.top
    cowfs.ok("unmount", mounted, "--no-apply")
    with open(store / "data.mdb", "r+b") as file:
        os.pwrite(file.fileno(), bytes(4), 16)  # the magic number of the first meta page
    error = cowfs.fails("mount", mounted)
    assert error["code"] == "COWFS_STORE_DAMAGED"
    assert "verify --repair" in error["hint"]
    found = cowfs.run("-C", mounted, "verify", "--json")
    assert found.code == 47
    (problem,) = found.document["problems"]
    assert (problem["check"], problem["table"]) == ("structure", "(meta)")
    assert "must be free" in found.document["to_repair"][1]
    plan = cowfs.run("-C", mounted, "verify", "--repair", "--dry-run", "--json").document
    assert plan["repair"]["kept"] == ""
    done = cowfs.run("-C", mounted, "verify", "--repair", "--yes")
    assert done.code == 0
    assert f"the damaged file is kept: {store}/data.mdb.damaged" in done.out
    cowfs.ok("mount", mounted)
    assert (mounted / "new").read_bytes() == b"new content\n"
    assert cowfs.ok("verify", cwd=mounted)["problems"] == []
    told = cowfs.run("doctor", "--json", cwd=mounted).document["findings"]
    assert any(f"{store}/data.mdb.damaged" in row["detail"] for row in told)


def test_options_that_need_others(cowfs: Cowfs, damaged: tuple[Path, bytes]) -> None:
    directory, _ = damaged
    assert cowfs.fails("-C", directory, "verify", "--yes")["code"] == "COWFS_USAGE"
    assert cowfs.fails("-C", directory, "verify", "--dry-run")["code"] == "COWFS_USAGE"
    # Nobody can be asked here.
    assert cowfs.fails("-C", directory, "verify", "--repair")["code"] == "COWFS_USAGE"


def test_a_plan_then_the_repair(cowfs: Cowfs, damaged: tuple[Path, bytes]) -> None:
    directory, digest = damaged
    plan = cowfs.run("-C", directory, "verify", "--repair", "--dry-run", "--json")
    assert plan.code == 47
    actions = plan.document["repair"]["actions"]
    assert {(a["how"], a["table"]) for a in actions} == {("rebuilt", "link"), ("marked", "block")}
    assert plan.document["repair"]["dry_run"] is True
    done = cowfs.run("-C", directory, "verify", "--repair", "--yes", "--json")
    assert done.code == 0
    assert done.document["repair"]["actions"] == actions
    assert done.document["problems"] == []
    (note,) = done.document["notes"]
    assert (note["check"], note["paths"]) == ("block-lost", ["new"])
    told = cowfs.run("-C", directory, "verify", "--repair", "--yes")
    assert told.code == 0
    assert told.out.startswith("nothing to repair\n")
    assert digest.hex() in told.out


def answered(cowfs: Cowfs, answer: bytes, *arguments: str | Path) -> tuple[int, bytes]:
    """Run a command on a terminal and answer its question: (exit code, what the terminal shows)."""
    ours, theirs = pty.openpty()
    try:
        process = cowfs.start(*arguments, stdin=theirs, stdout=theirs, stderr=theirs)
        os.close(theirs)
        shown = b""
        while select.select([ours], [], [], 30)[0]:
            try:
                piece = os.read(ours, 4096)
            except OSError:
                break
            if not piece:
                break
            shown += piece
            if b"Repair it? [y/N]:" in shown and answer:
                os.write(ours, answer)
                answer = b""
        return process.wait(30), shown
    finally:
        os.close(ours)


def test_a_repair_says_asks_and_does(cowfs: Cowfs, damaged: tuple[Path, bytes]) -> None:
    directory, digest = damaged
    code, shown = answered(cowfs, b"n\n", "-C", directory, "verify", "--repair")
    assert code == 1
    assert b"would be rebuilt: link" in shown
    assert b"would be marked: block " + digest.hex().encode() in shown
    code, shown = answered(cowfs, b"y\n", "-C", directory, "verify", "--repair")
    assert code == 0
    assert b"no problem found" in shown
    # What is written again is there again.
    cowfs.ok("mount", directory)
    (directory / "copy").write_bytes(b"new content\n")
    assert codec.block_hash(b"new content\n") == digest
    cowfs.ok("checkpoint", cwd=directory)
    assert (directory / "new").read_bytes() == b"new content\n"
    assert cowfs.ok("verify", cwd=directory)["notes"] == []
