"""Sessions in stores that were made anew, and in those from before there were any."""

from __future__ import annotations

import gzip
import mmap
import sys
from pathlib import Path

import lmdb
import pytest

from cowfs.service.sessions import reading
from cowfs.store.compaction import compact
from cowfs.store.env import TABLES, open_store
from cowfs.store.snapshot import Reader
from tests.sessions.talking import LINE, Talk, pieces
from tests.store.test_upgrade import HERE
from tests.support.checking import check_store
from tests.support.volumes import Rig

OURS = ("session", "transcript", "piece", "context")


@pytest.fixture
def talk(volume: Rig, tmp_path: Path) -> Talk:
    return Talk(volume, tmp_path / "agent")


def rows(rig: Rig) -> dict[str, dict[bytes, bytes]]:
    with Reader(rig.volume.store) as reader:
        return {table: dict(reader.scan(table)) for table in OURS}


def test_a_compaction_keeps_them(talk: Talk) -> None:
    talk.says(LINE * 1000)
    one = talk.checkpoint()
    talk.says(LINE)
    two = talk.checkpoint()
    before = rows(talk.rig)
    assert all(before.values())
    talk.rig.close()
    compact(talk.rig.store, lambda phase, done, total: None)
    talk.restart()
    assert rows(talk.rig) == before
    assert talk.conversation(one) == {"main": LINE * 1000}
    talk.says(LINE)
    assert talk.kept() == {"main": LINE * 1002}
    assert talk.conversation(two) == {"main": LINE * 1001}
    assert len(pieces(talk.rig)) == 3


def test_a_store_from_before_there_were_any(talk: Talk, tmp_path: Path) -> None:
    """It has no tables for them until it is opened for writing."""
    talk.rig.checkpoint()
    talk.rig.close()
    env = lmdb.open(str(talk.rig.store), max_dbs=len(TABLES), map_size=1 << 30)
    tables = {name: env.open_db(name.encode(), create=False) for name in OURS}
    with env.begin(write=True) as txn:
        for name in OURS:
            txn.drop(tables[name])
    env.close()
    store = open_store(talk.rig.store, writable=False)
    with Reader(store) as reader:
        assert not set(OURS) & store.tables.keys()
        assert list(reading.sessions(reader)) == []
        assert reading.context(reader, "0" * 12) is None
    store.close()
    check_store(talk.rig.store, talk.rig.base_fd)
    talk.restart()
    talk.says(LINE)
    assert talk.conversation(talk.checkpoint()) == {"main": LINE}


@pytest.mark.skipif(
    mmap.PAGESIZE != 4096 or sys.byteorder != "little",
    reason="LMDB's files are those of machines with pages of 4096 bytes, low byte first",
)
def test_a_store_of_version_1(tmp_path: Path) -> None:
    """It has none while it is only read, and takes some when it was upgraded."""
    path = tmp_path / "store"
    path.mkdir(mode=0o700)
    (path / "data.mdb").write_bytes(gzip.decompress((HERE / "store.gz").read_bytes()))
    store = open_store(path, writable=False)
    with Reader(store) as reader:
        assert list(reading.sessions(reader)) == []
    store.close()
    rig = Rig(path, None)
    talk = Talk(rig, tmp_path / "agent")
    talk.says(LINE)
    made = talk.checkpoint()
    talk.restart()
    assert talk.conversation(made) == {"main": LINE}
    assert all(rows(rig).values())
    rig.finish()
