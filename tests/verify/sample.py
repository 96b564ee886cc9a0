"""A small store with a bit of everything, and hands that break one thing in it."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import lmdb

from cowfs.agents.base import Source
from cowfs.format import audit, codec, condensed, keys, records, sessions
from cowfs.format.checksum import of_table
from cowfs.format.version import VERSION
from cowfs.service.checkpoint import checkpoint
from cowfs.service.sessions.registry import Registry
from cowfs.service.verify import Report, verify
from cowfs.service.workspace import reading
from cowfs.store.env import TABLES, Table, Transaction
from tests.support.volumes import AUTHOR, START, Rig

BLOCK = 65536


def noise(seed: int, size: int) -> bytes:
    """Bytes that do not compress, always the same for a seed."""
    return random.Random(seed).randbytes(size)


@dataclass(frozen=True, slots=True)
class Sample:
    """A store, closed. names: checkpoint ids to the names that the tests use for them.

    Its states (the epoch in parentheses; `now` is a child of `one`):

        start (0)   docs/readme (imported, 2 blocks), docs/old, empty/, link, shared1 = shared2
        one (1)     + src/main (2 blocks) = src/alias, src/util, src/deep/inner/, attribute user.a
        two (2)     src/main changed (a delta), src/util gone, docs/old renamed to src/old
        lost (3)    + three; the rescue checkpoint of the restore to `one`
        now (4)     like one, + fresh, and src/util emptied and written anew

    An agent's session s1 made `one` and `two`, its sub-agent s1/a1 made nothing. Their files are
    the transcripts 1 (of `one` a piece, of `two` another, and a third one since) and 2 (of `two`).
    """

    store: Path
    base: Path
    inos: dict[str, int]
    names: dict[str, str]

    def copy(self, to: Path) -> Sample:
        """The same store elsewhere, to be broken."""
        shutil.copytree(self.store, to, ignore=shutil.ignore_patterns("lock.mdb"))
        return replace(self, store=to)

    def verify(self, **options: Any) -> Report:
        fd = os.open(self.base, os.O_RDONLY | os.O_DIRECTORY)
        try:
            with reading(self.store, fd, damaged=True) as workspace:
                return verify(workspace, **options)
        finally:
            os.close(fd)

    @contextmanager
    def open(self, *, recount: bool = True) -> Iterator[Hands]:
        """The store's tables, for writing behind cowfs's back. recount: with sums of records that
        fit what was written."""
        env = lmdb.open(str(self.store), max_dbs=len(TABLES), map_size=1 << 30)
        try:
            tables = {name: env.open_db(name.encode(), create=False) for name in TABLES}
            with env.begin(write=True) as txn:
                hands = Hands(txn, tables, self.inos)
                yield hands
                if recount and hands.changed:
                    count_again(txn, tables)
        finally:
            env.close()


def count_again(txn: Any, tables: dict[str, Any]) -> None:
    """Make all sums of records anew."""
    named = {name: Table(name, db, of_table(name, VERSION)) for name, db in tables.items()}
    Transaction(txn).recount(named)


class Hands:
    """One write transaction on a sample's store."""

    def __init__(self, txn: Any, tables: dict[str, Any], inos: dict[str, int]) -> None:
        self._txn = txn
        self._tables = tables
        self.inos = inos
        self.changed = False

    def get(self, table: str, key: bytes) -> bytes:
        """A value without its checksum."""
        return of_table(table, VERSION).strip(key, self.stored(table, key))

    def put(self, table: str, key: bytes, value: bytes) -> None:
        """Write a record with the checksum that fits it."""
        self.store(table, key, of_table(table, VERSION).seal(key, value))

    def stored(self, table: str, key: bytes) -> bytes:
        """A value with its checksum."""
        value = self._txn.get(key, db=self._tables[table])
        assert value is not None, f"the sample has no such record in {table}"
        return bytes(value)

    def store(self, table: str, key: bytes, stored: bytes) -> None:
        """Write a record with any checksum."""
        self.changed = True
        self._txn.put(key, stored, db=self._tables[table])

    def drop(self, table: str, key: bytes) -> None:
        self.changed = True
        assert self._txn.delete(key, db=self._tables[table]), f"no such record in {table}"

    def rows(self, table: str, prefix: bytes = b"") -> list[tuple[bytes, bytes]]:
        """(key, value without its checksum)."""
        strip = of_table(table, VERSION).strip
        with self._txn.cursor(db=self._tables[table]) as cursor:
            found = [(bytes(k), bytes(v)) for k, v in cursor if bytes(k).startswith(prefix)]
        return [(key, strip(key, stored)) for key, stored in found]

    # -- by the sample's names ----------------------------------------------------------------

    def inode(self, path: str, epoch: int) -> records.InodeRecord:
        value = self.get("inode", keys.inode_key(self.inos[path], epoch))
        return records.unpack_inode(condensed.lengthen(value))

    def change_inode(self, path: str, epoch: int, **fields: Any) -> None:
        """Replace fields of one version of an inode."""
        record = self.inode(path, epoch)._replace(**fields)
        self.put("inode", keys.inode_key(self.inos[path], epoch), records.pack_inode(*record))

    def name(self, parent: str, name: bytes, ino: int, kind: int, epoch: int) -> None:
        """Enter a name as the writer does: dirent, link and change record."""
        above = self.inos[parent]
        self.put("dirent", keys.dirent_key(above, name, epoch), records.pack_dirent(ino, kind))
        self.put("link", keys.link_key(ino, above, name, epoch), bytes((kind,)))
        self.put("change", keys.change_dirent_key(epoch, above, name), b"")

    def unname(self, parent: str, name: bytes, ino: int, epoch: int) -> None:
        """Take out what `name` enters."""
        above = self.inos[parent]
        self.drop("dirent", keys.dirent_key(above, name, epoch))
        self.drop("link", keys.link_key(ino, above, name, epoch))
        self.drop("change", keys.change_dirent_key(epoch, above, name))

    def extent(self, path: str, number: int, epoch: int) -> tuple[bytes, bytes]:
        """(key, hash) of the extent that an epoch wrote."""
        content = self.inode(path, epoch).content
        key = keys.extent_key(content, number, epoch)
        return key, self.get("extent", key)

    def delta(self) -> tuple[bytes, bytes, bytes]:
        """(hash, value, hash of the reference) of the sample's delta block."""
        for digest, value in self.rows("block"):
            if (reference := codec.delta_reference(value)) is not None:
                return digest, value, reference
        raise AssertionError("the sample has no delta")

    def change_record(self, table: str, key: bytes, kind: type[Any], **fields: Any) -> None:
        """Replace fields of a history record."""
        old = records.decode(self.get(table, key), kind)
        values = [fields.get(name, getattr(old, name)) for name in kind.__struct_fields__]
        self.put(table, key, records.encode(kind(*values)))


def processes(rig: Rig, name: bytes, parent: int = 0) -> int:
    """A process record in the next group; its number."""
    known = rig.volume.extra.puts.get("process", [])
    number = audit.FIRST + len(known)
    record = audit.ProcessRecord(
        4000 + number, 1000, 1000, "ana", name.decode(), name + b"\0", parent
    )
    rig.volume.extra.put("process", keys.pack_id(number), records.encode(record))
    return number


def note(rig: Rig, process: int, code: int, path: bytes) -> None:
    """An audit record of one operation in the next group."""
    log = rig.volume.audit
    number, ino = log._number(), rig.paths()[path].ino
    directory, _, name = path.rpartition(b"/")
    second = (0, b"other") if code == audit.RENAMED else (0, b"")
    row = (code, 5, ino, 8, 0, name, *second, 1, 10, 0)
    value = audit.encode_audit(rig.view.head, number - 10, process, [directory], [row])
    rig.volume.extra.put("audit", keys.pack_id(number), value)


class Talk:
    """An agent's session, whose conversation grows, and its sub-agent."""

    def __init__(self, rig: Rig, directory: Path) -> None:
        (directory / "subagents").mkdir(parents=True)
        self._rig = rig
        self._registry = Registry(rig.engine)
        self._sources = {
            "main": Source("main", str(directory / "s1.jsonl"), sessions.LINES),
            "sub": Source("subagents/a1.jsonl", str(directory / "subagents/a1.jsonl"), "lines"),
        }
        self._record = sessions.SessionRecord(
            "s1",
            "claude",
            started=1000,
            last=2000,
            uid=1000,
            user="ana",
            pid=4242,
            born=77,
            boot="b00710",
            cwd=b"/work",
            transcript=b"/home/ana/s1.jsonl",
            title="Tidy up",
            prompt="Tidy up",
            prompt_id="p1",
            version="2.1.0",
            origin="s0",
        )

    def says(self, file: str, line: bytes) -> None:
        with open(self._sources[file].path, "ab") as stream:
            stream.write(line)

    def sub_agent(self) -> None:
        self._registry.put(
            sessions.SessionRecord(
                "s1/a1",
                "claude",
                sessions.ENDED,
                ended=3000,
                reason="done",
                parent="s1",
                kind="Explore",
            )
        )

    def keep(self) -> tuple[sessions.Mark, ...]:
        """Store what is new."""
        self._record, captured = self._registry.capture(self._record, self._sources.values())
        assert not captured.missing
        return captured.marks

    def checkpoint(self, *, label: str = "", message: str = "") -> records.CheckpointRecord:
        context = sessions.ContextRecord(
            session="s1",
            event="tool-start",
            prompt="Tidy up",
            prompt_id="p1",
            tool=sessions.ToolCall("t1", "Bash", "make clean"),
            cwd=b"/work",
            marks=self.keep(),
            background=1,
            environment=(("HOME", "/home/ana"), ("LANG", "C")),
            hidden=("API_KEY",),
            processes=(sessions.RunningProcess(4242, 1, 1000, b"claude\0", b"/work"),),
            files=(sessions.OpenFile(4242, 5, 12, b"src/main", 10, 2),),
            ports=(sessions.ListeningPort("tcp", "127.0.0.1", 8080, 4242),),
            locks=(sessions.FileLock(4242, 12, b"src/main", "FLOCK", "WRITE", 0, -1),),
            missing=("the weather",),
            leaf="u7",
        )
        return checkpoint(
            self._rig.engine,
            AUTHOR,
            session="s1",
            context=sessions.pack_context(context),
            label=label,
            message=message,
        )


def build(directory: Path) -> Sample:
    """Make the sample in an empty directory."""
    base = directory / "base"
    (base / "docs").mkdir(parents=True)
    (base / "empty").mkdir()
    (base / "docs" / "readme").write_bytes(noise(1, 70_000))
    (base / "docs" / "old").write_bytes(b"old")
    (base / "shared1").write_bytes(b"shared")
    os.link(base / "shared1", base / "shared2")
    os.symlink("docs/readme", base / "link")
    rig = Rig(directory / "store", base)
    rig.tree()
    for path in (b"src", b"src/deep", b"src/deep/inner"):
        rig.mkdir(path)
    rig.create(b"src/main", noise(2, 100_000))
    parent = processes(rig, b"bash")
    child = processes(rig, b"rm", parent)
    note(rig, child, audit.MADE, b"src/main")
    rig.link(b"src/main", b"src/alias")
    rig.create(b"src/util", b"util")
    rig.setxattr(b"src/main", b"user.a", b"1")
    talk = Talk(rig, directory / "agent")
    talk.says("main", b'{"type":"user"}\n')
    one = talk.checkpoint(label="v1")
    rig.write(b"src/main", b"changed", 10)
    rig.unlink(b"src/util")
    rig.rename(b"docs/old", b"src/old")
    talk.says("main", b'{"type":"assistant"}\n{"type":"user"}\n')
    talk.says("sub", b'{"isSidechain":true}\n{"cut off')
    two = talk.checkpoint(message="two")
    rig.create(b"three", noise(3, 1000))
    lost = rig.restore(one).rescue
    rig.create(b"fresh", noise(4, 1000))
    note(rig, child, audit.MADE, b"fresh")
    note(rig, child, audit.RENAMED, b"src/main")
    rig.save(b"src/util", b"more")
    talk.says("main", b'{"type":"last"}\n')
    talk.keep()
    talk.sub_agent()
    rig.volume.sync()
    inos = {path.decode(): facts.ino for path, facts in rig.tree().items()}
    inos[""] = 1
    epochs = (one.epoch, two.epoch, lost.epoch, rig.view.head)
    assert epochs == (1, 2, 3, 4)
    ((_, three),) = list(rig.volume.reader.scan("dirent", keys.dirent_prefix(1, b"three")))
    inos["three"] = keys.unpack_id(three)
    rig.finish(check=False)
    names = {START: "start", one.id: "one", two.id: "two", lost.id: "lost", "@": "now"}
    return Sample(directory / "store", base, inos, names)
