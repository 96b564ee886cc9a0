"""Going back with the adapters that there are: what the agent would hear of the copy."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from cowfs import agents
from cowfs.agents.events import PROMPT
from cowfs.format.sessions import ContextRecord, SessionRecord, pack_context
from cowfs.service.checkpoint import checkpoint
from cowfs.service.engine import commit
from cowfs.service.restore import restore
from cowfs.service.sessions import reading
from cowfs.service.sessions.conversation import copy_session
from cowfs.service.sessions.registry import Registry
from cowfs.store.snapshot import Reader
from tests.agents.codex.writing import CODEX
from tests.agents.gemini.writing import GEMINI
from tests.agents.generic.writing import GENERIC
from tests.agents.opencode.writing import OPENCODE
from tests.agents.talks import Answer, Calls, Said, Writing
from tests.support.volumes import AUTHOR, Rig

TALK = (
    Said("make the cart", (Answer("I begin"), Calls((1, 0)), Answer("it is made"))),
    Said("add tax", (Answer("tax is added"),)),
)


@pytest.mark.parametrize("writing", [CODEX, GEMINI, GENERIC, OPENCODE], ids=lambda w: str(w.name))
def test_to_before_the_second_prompt(writing: Writing, volume: Rig, tmp_path: Path) -> None:
    transcript = tmp_path / os.path.basename(writing.transcript)
    then = writing.write(TALK[:1])
    transcript.write_bytes(then)
    volume.create(b"file", b"then")
    registry = Registry(volume.engine)
    record, captured = registry.capture(
        SessionRecord(
            writing.session,
            writing.name,
            cwd=os.fsencode(tmp_path),
            transcript=os.fsencode(transcript),
        ),
        agents.get(writing.name).sources(str(transcript)),
    )
    commit(volume.engine)
    context = ContextRecord(record.id, event=PROMPT, prompt="add tax", marks=captured.marks)
    point = checkpoint(
        volume.engine, AUTHOR, kind="prompt", session=record.id, context=pack_context(context)
    )
    transcript.write_bytes(writing.write(TALK))
    volume.save(b"file", b"now")

    told = restore(volume.engine, AUTHOR, point.id, conversation=True).conversation
    assert told is not None
    assert volume.read(b"file") == b"then"
    assert transcript.read_bytes() == writing.write(TALK)
    [copy] = map(Path, told.files)
    assert writing.copied(copy.read_bytes()) == writing.heard(then)
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    assert told.prompt == "add tax"
    assert told.session != writing.session
    assert told.notes if not told.command else told.session in " ".join(told.command)

    with Reader(volume.volume.store) as reader:
        made = reading.session(reader, told.session)
    assert made is not None
    assert made.transcript == (b"" if told.before else os.fsencode(copy))

    transcript.unlink()
    whole = copy_session(volume.engine, registry, AUTHOR, record.id)
    [copy] = map(Path, whole.files)
    assert writing.copied(copy.read_bytes()) == writing.heard(then)
