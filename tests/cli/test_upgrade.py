"""A store of version 1 of the format, from the command line: read, upgraded, verified, told of."""

from __future__ import annotations

import os
from pathlib import Path

import lmdb
import msgspec
import pytest

from cowfs.errors import VerifyFailedError
from cowfs.format.checksum import of_table
from cowfs.format.version import VERSION, decode_format
from cowfs.store.env import TABLES
from cowfs.store.upgrade import KEPT
from tests.cli.command import Cowfs


def downgrade(store: Path) -> None:
    """Take all checksums off, as version 1 had none."""
    env = lmdb.open(str(store), max_dbs=len(TABLES), map_size=1 << 30)
    try:
        for table in TABLES:
            db, checksum = env.open_db(table.encode()), of_table(table, VERSION)
            with env.begin(write=True) as txn:
                rows = [(bytes(key), bytes(stored)) for key, stored in txn.cursor(db=db)]
                for key, stored in rows:
                    if table == "meta" and key.startswith(b"sums"):
                        txn.delete(key, db=db)
                        continue
                    value = checksum.strip(key, stored)
                    if (table, key) == ("meta", b"format"):
                        fields = msgspec.structs.astuple(decode_format(stored))
                        value = msgspec.msgpack.encode((1, *fields[1:-1]))
                    txn.put(key, value, db=db)
    finally:
        env.close()


@pytest.fixture
def old(cowfs: Cowfs, mounted: Path) -> tuple[Path, Path]:
    """An unmounted workspace with a checkpoint whose store is of version 1: directory, store."""
    (mounted / "file").write_bytes(b"content\n")
    cowfs.ok("checkpoint", "-m", "one")
    ((_, store),) = cowfs.mounts()
    cowfs.cwd = cowfs.top
    cowfs.ok("unmount", mounted)
    downgrade(Path(store))
    return mounted, Path(store)


def copies(cowfs: Cowfs) -> list[str]:
    """What `doctor` says of a copy."""
    rows = cowfs.run("doctor", "--json").document["findings"]
    return [row["advice"] for row in rows if KEPT in row["detail"]]


def test_reading_changes_nothing(cowfs: Cowfs, old: tuple[Path, Path]) -> None:
    directory, store = old
    before = (store / "data.mdb").read_bytes()
    names = [row["message"] for row in cowfs.ok("log", cwd=directory)["checkpoints"]]
    assert "one" in names
    assert cowfs.ok("verify", cwd=directory)["problems"] == []
    cowfs.ok("verify", "--repair", "--dry-run", cwd=directory)
    assert (store / "data.mdb").read_bytes() == before
    assert not (store / KEPT).exists()
    assert copies(cowfs) == []


@pytest.mark.parametrize("mounted_again", [True, False])
def test_upgraded_and_verified(cowfs: Cowfs, old: tuple[Path, Path], mounted_again: bool) -> None:
    directory, store = old
    if mounted_again:
        cowfs.ok("mount", directory)
        assert (directory / "file").read_bytes() == b"content\n"
    else:
        cowfs.ok("apply", cwd=directory)
    assert (store / KEPT).exists()
    assert copies(cowfs) == [f"`cowfs -C {directory} verify` removes it when the new one is sound."]
    answer = cowfs.ok("verify", cwd=directory)
    assert answer["problems"] == []
    assert answer["upgrade_copy_removed"] is True
    assert not (store / KEPT).exists()
    assert copies(cowfs) == []
    assert cowfs.ok("verify", cwd=directory)["upgrade_copy_removed"] is False


def test_the_copy_stays_while_there_is_a_problem(cowfs: Cowfs, old: tuple[Path, Path]) -> None:
    directory, store = old
    cowfs.ok("apply", cwd=directory)
    env = lmdb.open(str(store), max_dbs=len(TABLES), map_size=1 << 30)
    with env.begin(write=True) as txn:
        db = env.open_db(b"checkpoint", txn=txn)
        key, stored = next(iter(txn.cursor(db=db)))
        txn.put(bytes(key), bytes(stored)[:-1] + b"?", db=db)
    env.close()
    assert cowfs.run("verify", cwd=directory).code == VerifyFailedError.exit_code
    assert (store / KEPT).exists()
    cowfs.ok("verify", "--repair", "--yes", cwd=directory)
    assert cowfs.ok("verify", cwd=directory)["upgrade_copy_removed"] is True


def test_a_copy_in_the_way_is_an_error_that_says_what_to_do(
    cowfs: Cowfs, old: tuple[Path, Path]
) -> None:
    directory, store = old
    (store / KEPT).write_bytes(b"another one")
    before = (store / "data.mdb").read_bytes()
    error = cowfs.fails("mount", directory)
    assert error["code"] == "COWFS_UPGRADE_FAILED"
    assert os.fspath(store / KEPT) in error["message"]
    assert (store / "data.mdb").read_bytes() == before
    assert cowfs.ok("log", cwd=directory)["total"] >= 2
