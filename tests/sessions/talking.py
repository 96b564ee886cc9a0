"""An agent's session as tests drive it: files that it writes, and what the store keeps of them."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from cowfs.agents.base import MAIN, Source
from cowfs.format import keys, records
from cowfs.format.sessions import (
    LINES,
    NOTHING,
    ContextRecord,
    Mark,
    SessionRecord,
    TranscriptRecord,
    chained,
    pack_context,
    piece_parts,
    unpack_piece,
)
from cowfs.service.checkpoint import checkpoint
from cowfs.service.sessions import reading
from cowfs.service.sessions.registry import Registry
from cowfs.service.sessions.transcripts import Captured
from cowfs.store.snapshot import Reader
from tests.support.volumes import AUTHOR, Rig

LINE = b'{"type":"user","message":"tidy up"}\n'


class Talk:
    """One session. registry: of this life of the volume; `restart` begins another one."""

    def __init__(self, rig: Rig, directory: Path, name: str = "s1") -> None:
        self.rig = rig
        self.directory = directory
        self.name = name
        directory.mkdir(exist_ok=True)
        self.registry = Registry(rig.engine)
        self.sources: dict[str, Source] = {}
        self.add(MAIN, f"{name}.jsonl")

    def add(self, name: str, path: str | bytes, kind: str = LINES) -> Path:
        """Another file of the conversation."""
        place = os.path.join(os.fsencode(self.directory), os.fsencode(path))
        self.sources[name] = Source(name, os.fsdecode(place), kind)
        return Path(os.fsdecode(place))

    def path(self, name: str = MAIN) -> Path:
        return Path(self.sources[name].path)

    def says(self, data: bytes, name: str = MAIN) -> None:
        with open(self.path(name), "ab") as file:
            file.write(data)

    def restart(self) -> None:
        """Another life of the daemon."""
        self.rig.reopen()
        self.registry = Registry(self.rig.engine)

    def record(self) -> SessionRecord:
        return self.registry.get(self.name) or SessionRecord(self.name, "claude")

    def keep(self, sources: Iterable[Source] | None = None) -> Captured:
        chosen = list(self.sources.values()) if sources is None else list(sources)
        with self.registry.lock:
            return self.registry.capture(self.record(), chosen)[1]

    def checkpoint(self, captured: Captured | None = None) -> records.CheckpointRecord:
        """With the conversation as it is now."""
        found = captured or self.keep()
        context = ContextRecord(self.name, "prompt", marks=found.marks, complete=found.complete)
        return checkpoint(
            self.rig.engine,
            AUTHOR,
            kind="prompt",
            session=self.name,
            context=pack_context(context),
        )

    def conversation(self, of: records.CheckpointRecord | str) -> dict[str, bytes]:
        """The files as a checkpoint has them."""
        name = of if isinstance(of, str) else of.id
        with Reader(self.rig.volume.store) as reader:
            context = reading.context(reader, name)
            assert context is not None
            return reading.conversation(reader, context)

    def stored(self, marks: Iterable[Mark]) -> dict[str, bytes]:
        """The files as far as they are marked."""
        self.rig.volume.sync()
        with Reader(self.rig.volume.store) as reader:
            return reading.conversation(reader, ContextRecord(marks=tuple(marks)))

    def kept(self) -> dict[str, bytes]:
        """The files as they are stored after another look."""
        return self.stored(self.keep().marks)


def pieces(rig: Rig) -> dict[tuple[int, int], int]:
    """(transcript, offset) to length of all pieces. They fit their transcripts."""
    rig.volume.sync()
    found, ends = {}, dict[int, tuple[int, bytes]]()
    with Reader(rig.volume.store) as reader:
        for key, value in reader.scan("piece"):
            number, offset = piece_parts(key)
            digest, data = unpack_piece(value)
            length, before = ends.get(number, (0, NOTHING))
            assert (offset, chained(before, data)) == (length, digest)
            ends[number] = offset + len(data), digest
            found[number, offset] = len(data)
    assert ends == {n: (record.length, record.hash) for n, record in transcripts(rig).items()}
    return found


def transcripts(rig: Rig) -> dict[int, TranscriptRecord]:
    rig.volume.sync()
    with Reader(rig.volume.store) as reader:
        return {
            keys.unpack_id(key): records.decode(value, TranscriptRecord)
            for key, value in reader.scan("transcript")
        }


def sessions(rig: Rig) -> dict[str, SessionRecord]:
    rig.volume.sync()
    with Reader(rig.volume.store) as reader:
        return {record.id: record for record in reading.sessions(reader)}
