"""An agent for tests: it writes one line for all that is said, and long results beside that."""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping
from pathlib import Path

from cowfs.agents.base import MAIN, Conversation, Copy, NotCopyableError, Source
from cowfs.agents.events import PROMPT
from cowfs.format.records import CheckpointRecord
from cowfs.format.sessions import ContextRecord, SessionRecord, pack_context
from cowfs.service.checkpoint import checkpoint
from cowfs.service.engine import LocalEngine, commit
from cowfs.service.sessions.registry import Registry
from tests.support.volumes import AUTHOR

NAME = "scribe"
SESSION = "11111111-2222-3333-4444-555555555555"


class Scribe:
    """Its conversation is SESSION.log, and the files of the directory SESSION beside that."""

    name = NAME
    title = "Scribe"

    def sources(self, transcript: str) -> list[Source]:
        directory = transcript.removesuffix(".log")
        names = sorted(os.listdir(directory)) if os.path.isdir(directory) else []
        beside = [Source(f"results/{n}", os.path.join(directory, n), "whole") for n in names]
        return [Source(MAIN, transcript, "lines"), *beside]

    def read(self, files: Mapping[str, bytes]) -> Conversation:
        return Conversation()

    def complete(self, files: Mapping[str, bytes], last_answer: str) -> bool:
        return True

    def copy(
        self, files: Mapping[str, bytes], *, transcript: str, cwd: str, session: str, leaf: str = ""
    ) -> Copy:
        if b"unspeakable" in files[MAIN]:
            raise NotCopyableError("it has an unspeakable word in it")
        new = str(uuid.uuid4())
        above = os.path.dirname(transcript)
        paths = {
            name: os.path.join(above, new, os.path.basename(name)) for name in files if name != MAIN
        }
        paths[MAIN] = os.path.join(above, f"{new}.log")
        return Copy(
            new,
            {path: files[name] for name, path in paths.items()},
            ("scribe", "--resume", new),
            cwd or "/work",
        )

    def resume_command(self, session: str, cwd: str) -> tuple[str, ...]:
        return ("scribe", "--resume", session)


class Talk:
    """A conversation with the scribe, in a directory of its own. `engine` is that of an open
    volume, another one after each opening."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(exist_ok=True)
        self.directory = directory
        self.main = directory / f"{SESSION}.log"
        self.results = directory / SESSION

    def say(self, text: str) -> None:
        with self.main.open("ab") as file:
            file.write(text.encode() + b"\n")

    def put_aside(self, name: str, data: bytes) -> None:
        """A long result."""
        self.results.mkdir(exist_ok=True)
        (self.results / name).write_bytes(data)

    def begin(self, cwd: Path) -> SessionRecord:
        return SessionRecord(
            SESSION,
            NAME,
            started=1,
            last=1,
            cwd=os.fsencode(cwd),
            transcript=os.fsencode(self.main),
        )

    def checkpoint(
        self, engine: LocalEngine, cwd: Path, prompt: str = "", kind: str = "prompt"
    ) -> CheckpointRecord:
        """A checkpoint before a prompt, as a hook has it made."""
        registry = Registry(engine)
        record = registry.get(SESSION) or self.begin(cwd)
        sources = Scribe().sources(str(self.main))
        record, captured = registry.capture(record, sources)
        context = ContextRecord(
            SESSION, event=PROMPT, prompt=prompt, cwd=record.cwd, marks=captured.marks
        )
        commit(engine)
        return checkpoint(
            engine,
            AUTHOR,
            message=prompt,
            kind=kind,
            session=SESSION,
            context=pack_context(context),
        )

    def seen(self) -> dict[str, bytes]:
        """All files there, by their path below the directory."""
        return {
            str(path.relative_to(self.directory)): path.read_bytes()
            for path in sorted(self.directory.rglob("*"))
            if path.is_file()
        }
