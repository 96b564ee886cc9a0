"""The adapter for agents that have none of their own.

Threading: see base.py.
"""

from __future__ import annotations

from collections.abc import Mapping

from cowfs.agents.base import MAIN, Conversation, Copy, NotCopyableError, Source


class Generic:
    """Keeps the file that the agent named, as it grows."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.title = name

    def sources(self, transcript: str) -> list[Source]:
        return [Source(MAIN, transcript, "lines")]

    def read(self, files: Mapping[str, bytes]) -> Conversation:
        return Conversation()

    def complete(self, files: Mapping[str, bytes], last_answer: str) -> bool:
        return True

    def copy(
        self, files: Mapping[str, bytes], *, transcript: str, cwd: str, session: str, leaf: str = ""
    ) -> Copy:
        raise NotCopyableError(f"cowfs does not know how {self.name} goes on with a conversation")

    def resume_command(self, session: str, cwd: str) -> tuple[str, ...]:
        return ()


def adapter(name: str) -> Generic:
    """The adapter for an agent of that name."""
    return Generic(name)
