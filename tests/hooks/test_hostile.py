"""Events that no agent would send: the daemon refuses them, or keeps what it can."""

from __future__ import annotations

import tempfile
import threading
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from cowfs.agents import NAMES, events
from cowfs.errors import CowfsError, InternalError
from cowfs.service.sessions.recording import Recorder, parse
from cowfs.service.sessions.registry import Registry
from tests.support.checking import check_store
from tests.support.volumes import AUTHOR, Rig

texts = st.sampled_from(["", "a", "b", "s", "\0", "\udcff", "\ud800", "é", "x" * 600, "a/b", "."])
paths = st.sampled_from(["", "/", "relative", "/nowhere", "/dev/null", "/proc/self/mem", "/a\0b"])
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "agent": st.sampled_from([*NAMES, "other"]),
    "session": st.sampled_from(["s", "t", "\udcff", "x" * 200]),
    "event": st.sampled_from(events.EVENTS),
    "subagent": texts,
    "subagent_kind": texts,
    "subagent_transcript": paths,
    "cwd": paths,
    "transcript": paths,
    "pid": st.sampled_from([0, 1, -1, 2**22, 2**63]),
    "prompt": texts,
    "prompt_id": texts,
    "tool_id": texts,
    "tool": texts,
    "tool_text": texts,
    "tool_path": paths,
    "last_answer": texts,
    "background": st.sampled_from([0, 3, -7, 2**40]),
    "source": texts,
    "reason": texts,
    "title": texts,
    "version": texts,
    "environment": st.dictionaries(texts, texts, max_size=2),
    "wait": st.sampled_from([0.0, 5.0]),
}
NEEDED = ("agent", "session", "event")
one = st.fixed_dictionaries(
    {name: FIELDS[name] for name in NEEDED},
    optional={name: field for name, field in FIELDS.items() if name not in NEEDED},
)


@given(st.lists(st.tuples(one, st.booleans()), max_size=6))
def test_any_events(steps: list[tuple[dict[str, Any], bool]]) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as top:
        rig = Rig(Path(top), None)
        try:
            recorder = Recorder(rig.engine, threading.RLock(), Registry(rig.engine))
            for number, (params, change) in enumerate(steps):
                if change:
                    rig.save(b"file", str(number).encode())
                try:
                    recorder.record(AUTHOR, parse(params))
                except InternalError:
                    raise
                except CowfsError:
                    pass
        finally:
            rig.close()
        check_store(Path(top), None)
