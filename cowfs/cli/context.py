"""From the command line to the workspace: where a command works, and how it answers.

Finding a workspace and opening it is `cowfs.api.opening`'s.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NoReturn

import click

from cowfs.api import opening
from cowfs.api.opening import Daemon, Progress, base_descriptor, connect, reading
from cowfs.cli import output
from cowfs.client import places
from cowfs.client.places import Place
from cowfs.errors import CowfsError, UsageError

if TYPE_CHECKING:
    from cowfs.service.engine import LocalEngine
    from cowfs.volume.history import Author

__all__ = [
    "Context",
    "Daemon",
    "Progress",
    "author",
    "base_descriptor",
    "connect",
    "reading",
    "writing",
]


class Context:
    """One command: where it works (`-C` or the working directory) and how it answers."""

    def __init__(self, directory: str | None = None) -> None:
        """`directory`: of `-C`, relative to the working directory."""
        self._given = directory
        self.json = False

    @property
    def here(self) -> str:
        """The working directory. Raises UsageError when it is gone without a trace."""
        try:
            return places.current_directory()
        except OSError:
            detail = 'the working directory does not exist any more; `cd "$PWD"` enters a new one'
            raise UsageError(detail=detail) from None

    @property
    def directory(self) -> str:
        """Where the command works; absolute."""
        if self._given is not None and os.path.isabs(self._given):
            return self._given
        return os.path.join(self.here, self._given) if self._given else self.here

    def path(self, text: str) -> str:
        """A path of the command line: absolute, all symbolic links followed."""
        return os.path.realpath(os.path.join(self.directory, text))

    def locate(self, directory: str | None = None) -> Place:
        """The workspace that holds a directory, or where the command works."""
        return opening.locate(os.path.normpath(os.path.join(self.directory, directory or "")))

    def inside(self, place: Place, text: str) -> str:
        """A path of the command line relative to the workspace's top; "" is the top itself. Raises
        UsageError for a path outside, or an empty one."""
        return opening.inside(place, text, self.directory)

    def answer(self, document: dict[str, Any], text: str) -> None:
        """Print the result, one way or the other."""
        if self.json:
            output.document(document)
        elif text:
            output.text(text)

    def answer_failed(self, document: dict[str, Any], text: str, failure: CowfsError) -> NoReturn:
        """Print the result and what is wrong with it; ends the command."""
        if not self.json:
            output.text(text)
        code = output.error(failure.to_json(), as_json=self.json, result=document)
        raise click.exceptions.Exit(code)


@contextlib.contextmanager
def writing(place: Place) -> Iterator[LocalEngine]:
    """`opening.writing`, which shows on a terminal how far an upgrade of the store is."""
    from cowfs.cli.progress import ProgressLine

    with ProgressLine() as line, opening.writing(place, line.step) as engine:
        line.clear()
        yield engine


def author() -> Author:
    """Who runs this command."""
    return opening.author(output.valid(" ".join(["cowfs", *sys.argv[1:]])))
