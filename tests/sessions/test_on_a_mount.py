"""Conversations on a real mount: of an agent that writes its files into the workspace itself."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

from cowfs.format.records import CheckpointRecord
from cowfs.format.sessions import piece_parts, unpack_piece
from cowfs.service.selectors import all_checkpoints
from cowfs.service.sessions import reading
from cowfs.store.env import open_store
from cowfs.store.snapshot import Reader
from tests.conftest import MountFunction
from tests.sessions.talking import LINE
from tests.support.mounting import Mounted

_NUMBERS = itertools.count(1)


def event(mounted: Mounted, name: str, transcript: Path) -> str:
    """Tell the daemon of an event; the id of the checkpoint, "" if there is none."""
    answer = mounted.call(
        "session.event",
        agent="someone",
        session="s1",
        event=name,
        cwd=str(mounted.mountpoint),
        transcript=str(transcript),
        prompt="tidy up",
        prompt_id=f"p{next(_NUMBERS)}",
        pid=os.getpid(),
    )
    return str((answer["checkpoint"] or {"id": ""})["id"])


def look(store: Path) -> tuple[dict[str, bytes], list[tuple[int, int, int]]]:
    """(main file by message's checkpoint, pieces as transcript, offset, length)."""
    opened = open_store(store, writable=False)
    try:
        with Reader(opened) as reader:
            found: dict[str, bytes] = {}
            records: list[CheckpointRecord] = all_checkpoints(reader)
            for record in records:
                context = reading.context(reader, record.id)
                files = reading.conversation(reader, context) if context is not None else {}
                if "main" in files:
                    found[record.id] = files["main"]
            pieces = [
                (*piece_parts(key), len(unpack_piece(value)[1]))
                for key, value in reader.scan("piece")
            ]
            return found, pieces
    finally:
        opened.close()


def test_a_conversation_inside_of_the_mount(base: Path, mount: MountFunction) -> None:
    """The daemon reads it through its own mount; another life stores only what is new."""
    here = mount(base)
    transcript = here.mountpoint / "log.jsonl"
    transcript.write_bytes(LINE + b"cut")
    one = event(here, "prompt", transcript)
    with open(transcript, "ab") as file:
        file.write(b" off\n")
    two = event(here, "turn-end", transcript)
    here.unmount()
    here = mount(base, here.store)
    with open(transcript, "ab") as file:
        file.write(LINE)
    three = event(here, "prompt", transcript)
    found, pieces = look(here.store)
    whole = LINE + b"cut off\n" + LINE
    sizes = [len(LINE), 8, len(LINE)]
    assert found == {one: LINE, two: whole[: len(LINE) + 8], three: whole}
    assert pieces == [(1, sum(sizes[:at]), size) for at, size in enumerate(sizes)]


def test_a_directory_of_the_mount_in_the_place_of_a_file(base: Path, mount: MountFunction) -> None:
    here = mount(base)
    place = here.mountpoint / "talk"
    place.mkdir()
    assert event(here, "prompt", place)
    os.mkfifo(here.mountpoint / "fifo")
    assert event(here, "prompt", here.mountpoint / "fifo")
    found, pieces = look(here.store)
    assert (found, pieces) == ({}, [])


def test_a_collection_of_the_daemon(base: Path, tmp_path: Path, mount: MountFunction) -> None:
    """What only a checkpoint that was removed had of a conversation goes, and the rest goes on."""
    here = mount(base)
    transcript = tmp_path / "log.jsonl"
    transcript.write_bytes(LINE)
    one = event(here, "prompt", transcript)
    transcript.write_bytes(LINE.upper())
    two = event(here, "prompt", transcript)
    assert [number for number, _, _ in look(here.store)[1]] == [1, 2]
    here.call("forget", checkpoints=[one])
    here.call("gc", rules=None)
    found, pieces = look(here.store)
    assert (set(found), pieces) == ({two}, [(2, 0, len(LINE))])
    with open(transcript, "ab") as file:
        file.write(LINE)
    three = event(here, "prompt", transcript)
    assert look(here.store)[0][three] == LINE.upper() + LINE
