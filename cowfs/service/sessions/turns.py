"""What is known of a turn only when it has ended: whether the conversation has its answer, and what
its prompt really hangs from.

Threading: for the threads that an `Engine` is for.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass

import msgspec

from cowfs import agents
from cowfs.agents.base import MAIN, Rewinding
from cowfs.errors import DamagedRecordError
from cowfs.format.sessions import Mark, pack_context
from cowfs.service.engine import Engine
from cowfs.service.sessions import reading
from cowfs.store.snapshot import Reader

log = logging.getLogger(__name__)

_PAUSE_SECONDS = 0.05
_LONGEST_WAIT = 1.0
_END_BYTES = 256 << 10
_BEGINNING_BYTES = 2 << 20
"""Of what a turn added: its prompt is one of the first lines."""
_MOST_SESSIONS = 200
_PATIENCE_SECONDS = 0.5


def _part(path: str, start: int | None, most: int) -> bytes:
    """Bytes of a file from an offset on, or its last ones; b"" when it cannot be read."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return b""
    try:
        return os.pread(fd, most, max(os.fstat(fd).st_size - most, 0) if start is None else start)
    except OSError:
        return b""
    finally:
        os.close(fd)


def wait_for_answer(agent: str, transcript: str, last_answer: str) -> bool:
    """Wait, at most a second, until a conversation has the answer that its agent ended a turn with:
    it is written a little after the hook was started. One that has nothing at all is not waited
    for: the agent was told to keep none. Returns whether it has it."""
    if not last_answer or not transcript:
        return True
    adapter, end = agents.get(agent), time.monotonic() + _LONGEST_WAIT
    while data := _part(transcript, None, _END_BYTES):
        if adapter.complete({MAIN: data}, last_answer):
            return True
        if time.monotonic() >= end:
            break
        time.sleep(_PAUSE_SECONDS)
    return False


def about(agent: str, transcript: str) -> tuple[str, str]:
    """Title of a conversation and version of the agent's program, as far as its end says; ""."""
    data = _part(transcript, None, _END_BYTES) if transcript else b""
    found = agents.get(agent).read({MAIN: data})
    return found.title, found.version


@dataclass(frozen=True, slots=True)
class _Asked:
    """The last prompt of a session, its checkpoint, and how far the main file was then; None if
    there was none."""

    prompt_id: str
    checkpoint: str
    mark: Mark | None


class Turns:
    """The turns that are under way."""

    def __init__(self, engine: Engine, operation: threading.RLock) -> None:
        self._engine = engine
        self._operation = operation
        self._asked: OrderedDict[str, _Asked] = OrderedDict()

    def asked(self, session: str, prompt_id: str, checkpoint: str, marks: tuple[Mark, ...]) -> None:
        """The checkpoint before a prompt was made."""
        if not prompt_id:
            return
        self._asked[session] = _Asked(prompt_id, checkpoint, self._of_main(marks))
        while len(self._asked) > _MOST_SESSIONS:
            self._asked.popitem(last=False)

    def settle(self, agent: str, session: str, transcript: str, marks: tuple[Mark, ...]) -> None:
        """At the end of a turn, or at the next prompt. What the prompt hangs from may be another
        entry than the last one that was there at its checkpoint: an earlier one right after a
        rewind, which writes nothing; a later one where a turn was broken off just before, whose
        last lines came late. The prompt's line, which is there by now, says which. marks: how far
        the conversation is stored now; of a later entry the checkpoint's mark becomes that."""
        asked = self._asked.pop(session, None)
        adapter = agents.get(agent)
        if asked is None or not isinstance(adapter, Rewinding) or not transcript:
            return
        then, now = asked.mark, self._of_main(marks)
        length = then.length if then is not None else 0
        start = max(length - _END_BYTES, 0)
        end = min(now.length if now is not None else 0, length + _BEGINNING_BYTES)
        data = _part(transcript, start, max(end - start, 0))
        before, after = data[: length - start], data[length - start :]
        leaf = adapter.settled(before, after, asked.prompt_id)
        if not leaf:
            return
        came_late = leaf.encode() not in before
        same = then is not None and now is not None and then.transcript == now.transcript
        self._write(asked.checkpoint, leaf, now if came_late and same else None)

    def _of_main(self, marks: tuple[Mark, ...]) -> Mark | None:
        """The mark of the conversation's main file."""
        with Reader(self._engine.volume.store) as reader:
            for mark in marks:
                record = reading.transcript(reader, mark.transcript)
                if record is not None and record.name == MAIN:
                    return mark
        return None

    def _write(self, checkpoint: str, leaf: str, further: Mark | None) -> None:
        """Put the leaf into a checkpoint's context, if both are there still; and a mark, if the
        leaf is behind the one that is there."""
        if not self._operation.acquire(timeout=_PATIENCE_SECONDS):
            log.info("checkpoint %s: nobody says where its prompt hangs", checkpoint)
            return
        try:
            self._engine.call(lambda: self._put(checkpoint, leaf, further))
        except DamagedRecordError as error:
            log.warning("%s", error)
        finally:
            self._operation.release()

    def _put(self, checkpoint: str, leaf: str, further: Mark | None) -> None:
        volume = self._engine.volume
        found = reading.context(volume.reader, checkpoint)
        if volume.reader.get("checkpoint", checkpoint.encode()) is None or found is None:
            return
        number = further.transcript if further is not None else 0
        marks = tuple(further if m.transcript == number and further else m for m in found.marks)
        value = pack_context(msgspec.structs.replace(found, leaf=leaf, marks=marks))
        volume.extra.put("context", checkpoint.encode(), value)
