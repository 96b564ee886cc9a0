"""The adapter for agents that have none of their own.

The file that the agent named is kept as it grows, whatever is in it. If it is JSON lines with
`role` and `content` (as in the Chat Completions format), the prompts are read from it. A copy is
the beginning of the file under another name, beside it: how the agent is started with that is for
whoever knows it to say.

Threading: see base.py.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator, Mapping, Sequence

from cowfs.agents.base import MAIN, Conversation, Copy, NotCopyableError, Source, Turn
from cowfs.agents.cutting import entry, last_cut, up_to
from cowfs.agents.lenient import Line, lines, mapping, sequence, text, texts


class Generic:
    """See the module."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.title = name

    def sources(self, transcript: str) -> list[Source]:
        return [Source(MAIN, transcript, "lines")]

    def read(self, files: Mapping[str, bytes]) -> Conversation:
        turns, answer, leaf = [], "", entry(0)
        for line in lines(files.get(MAIN, b"")):
            said = texts(line.value.get("content"))
            match line.value.get("role"):
                case "user" if said:
                    turns.append(Turn(said, leaf=leaf))
                case "assistant":
                    answer = said or answer
            leaf = entry(line.number)
        return Conversation(turns=tuple(turns), last_answer=answer, leaf=leaf)

    def complete(self, files: Mapping[str, bytes], last_answer: str) -> bool:
        wanted = last_answer.strip()
        return not wanted or self.read(files).last_answer.strip() == wanted

    def copy(
        self, files: Mapping[str, bytes], *, transcript: str, cwd: str, session: str, leaf: str = ""
    ) -> Copy:
        data = files.get(MAIN, b"")
        wanted = up_to(lines(data), leaf)
        if not wanted:
            raise NotCopyableError("its file has no whole line yet")
        kept: Sequence[Line] = wanted
        notes: tuple[str, ...] = ()
        if any(map(_says, wanted)):
            kept, notes = last_cut(wanted, _cuts(wanted), _says)
        new = str(uuid.uuid4())
        stem, ending = os.path.splitext(transcript)
        path = f"{stem}.{new[:8]}{ending}"
        how = f"cowfs does not know how {self.title} goes on from a file: start it with {path}"
        return Copy(
            session=new,
            files={path: data[: kept[-1].end]},
            command=(),
            cwd=cwd,
            notes=(how, *notes),
        )

    def resume_command(self, session: str, cwd: str) -> tuple[str, ...]:
        return ()


def _says(line: Line) -> bool:
    return line.value.get("role") in ("user", "assistant", "tool")


def _cuts(wanted: Sequence[Line]) -> Iterator[int]:
    """After which lines the model has said something and every call has its output."""
    open_calls: set[str] = set()
    for line in wanted:
        role = line.value.get("role")
        if role == "assistant":
            calls = sequence(line.value.get("tool_calls"))
            open_calls.update(text(mapping(call).get("id")) for call in calls)
        elif role == "tool":
            open_calls.discard(text(line.value.get("tool_call_id")))
        if role in ("assistant", "tool") and not open_calls:
            yield line.number


def adapter(name: str) -> Generic:
    """The adapter for an agent of that name."""
    return Generic(name)
