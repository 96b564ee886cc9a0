"""What a repair leaves of conversations and sessions, and how they go on after it."""

from __future__ import annotations

from pathlib import Path

import pytest

from cowfs.agents.base import MAIN, Source
from cowfs.format import keys
from cowfs.format.sessions import ENDED, SessionRecord, piece_key
from cowfs.service.sessions import reading
from cowfs.service.sessions.registry import Registry
from cowfs.store.snapshot import Reader
from tests.support.volumes import Rig
from tests.verify.sample import Sample
from tests.verify.test_repair import mend

FIRST = b'{"type":"user"}\n'
SECOND = b'{"type":"assistant"}\n{"type":"user"}\n'
LAST = b'{"type":"last"}\n'
SUB = b'{"isSidechain":true}\n'


def conversations(sample: Sample) -> dict[str, tuple[dict[str, bytes], bool]]:
    """By state, the files of the conversation and whether they are complete."""
    rig = Rig(sample.store, sample.base)
    try:
        with Reader(rig.volume.store) as reader:
            return {
                sample.names[key.decode()]: (reading.conversation(reader, found), found.complete)
                for key in reader.keys("context")
                if (found := reading.context(reader, key.decode())) is not None
            }
    finally:
        rig.finish(check=False)


def session(sample: Sample, name: str = "s1") -> SessionRecord | None:
    rig = Rig(sample.store, sample.base)
    try:
        with Reader(rig.volume.store) as reader:
            return reading.session(reader, name)
    finally:
        rig.finish(check=False)


def damage(sample: Sample, table: str, key: bytes, way: str) -> None:
    with sample.open(recount=False) as hands:
        if way == "gone":
            hands.drop(table, key)
        elif way == "changed":
            hands.put(table, key, b"\x91\x01")
        else:
            stored = hands.stored(table, key)
            hands.store(table, key, b"\xff\xff\xff" + stored[3:])
    assert sample.verify().problems


def mended(sample: Sample) -> None:
    mend(sample)
    assert sample.verify().problems == []
    assert mend(sample).actions == []


WAYS = pytest.mark.parametrize("way", ["gone", "changed", "checksum"])


def test_what_a_sound_sample_has(sound_sample: Sample) -> None:
    whole = {MAIN: FIRST + SECOND, "subagents/a1.jsonl": SUB}
    assert conversations(sound_sample) == {"one": ({MAIN: FIRST}, True), "two": (whole, True)}


@WAYS
def test_a_piece_in_the_middle(sample: Sample, way: str) -> None:
    """What is before it stays, and the checkpoint says that something is missing."""
    damage(sample, "piece", piece_key(1, len(FIRST)), way)
    mended(sample)
    left = {MAIN: FIRST, "subagents/a1.jsonl": SUB}
    assert conversations(sample) == {"one": ({MAIN: FIRST}, True), "two": (left, False)}


@WAYS
def test_the_first_piece(sample: Sample, way: str) -> None:
    damage(sample, "piece", piece_key(1, 0), way)
    mended(sample)
    left = {"subagents/a1.jsonl": SUB}
    assert conversations(sample) == {"one": ({}, False), "two": (left, False)}
    found = session(sample)
    assert found is not None
    assert found.files == (2,)


@WAYS
def test_the_record_of_a_transcript(sample: Sample, way: str) -> None:
    """Its pieces say what was in it, and the session that it was the first file."""
    before = conversations(sample)
    damage(sample, "transcript", keys.pack_id(1), way)
    mended(sample)
    assert conversations(sample) == before


@WAYS
def test_a_session(sample: Sample, way: str) -> None:
    """Its id, and what it goes on with, are told elsewhere."""
    before = conversations(sample)
    damage(sample, "session", b"s1", way)
    mended(sample)
    assert conversations(sample) == before
    assert session(sample) == SessionRecord("s1", "unknown", ENDED, files=(1, 2))


@WAYS
def test_a_context(sample: Sample, way: str) -> None:
    """Nothing else tells what was in it."""
    key = next(k for k, name in sample.names.items() if name == "two").encode()
    damage(sample, "context", key, way)
    mended(sample)
    assert set(conversations(sample)) == {"one"}


def test_the_conversation_goes_on_after_it(sample: Sample, tmp_path: Path) -> None:
    """What the agent's file has beyond the cut is stored again."""
    damage(sample, "piece", piece_key(1, len(FIRST)), "gone")
    mended(sample)
    file = tmp_path / "s1.jsonl"
    file.write_bytes(FIRST + SECOND + LAST + LAST)
    rig = Rig(sample.store, sample.base)
    registry = Registry(rig.engine)
    known = registry.get("s1")
    assert known is not None
    registry.capture(known, [Source(MAIN, str(file), "lines")])
    rig.volume.sync()
    with Reader(rig.volume.store) as reader:
        record = reading.transcript(reader, 1)
        assert record is not None
        assert record.length == len(FIRST + SECOND + LAST + LAST)
    rig.finish()
