"""From the command line to the workspace: where a command works, and how it answers.

Finding a workspace and opening it is `cowfs.api.opening`'s.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import click

from cowfs.api import opening
from cowfs.api.opening import Daemon, Progress, base_descriptor, connect, reading
from cowfs.cli import output
from cowfs.client import places
from cowfs.client.places import Place
from cowfs.errors import CowfsError, NotAWorkspaceError, UsageError

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

    def locate_paths(self, paths: Sequence[str], perhaps: Sequence[str] = ()) -> Place:
        """The workspace that paths of the command line lie in; where none of them is in one, that
        in which the command works.

        perhaps: words that may be something else than paths. They are looked at only where nothing
        else says which workspace it is. Raises UsageError for paths in different workspaces.
        """
        held = self._holders(paths)
        if not held and perhaps and places.find(self.directory) is None:
            held = self._holders(perhaps)
        if not held:
            if paths and places.find(self.directory) is None:
                raise NotAWorkspaceError(path=self._directory_of(paths[0]))
            return self.locate()
        (one, place), *others = held
        for path, other in others:
            if other.store != place.store:
                tops = f"{place.mountpoint} and {other.mountpoint}"
                raise UsageError(detail=f"{one} and {path} are in two workspaces: {tops}")
        opening.must_be_ours(place.store)
        return place

    def _holders(self, paths: Sequence[str]) -> list[tuple[str, Place]]:
        """(path, its workspace) of those that are in one."""
        found = ((path, places.find(self._to_look_at(path))) for path in paths)
        return [(path, place) for path, place in found if place is not None]

    def _to_look_at(self, path: str) -> str:
        """What says where a path lies: of a symbolic link in last place, which is meant itself (as
        of `inside`), its directory."""
        full = os.path.normpath(os.path.join(self.directory, path))
        itself = os.path.basename(path) not in ("", ".", "..")
        return os.path.dirname(full) if itself and os.path.islink(full) else full

    def _directory_of(self, path: str) -> str:
        full = os.path.normpath(os.path.join(self.directory, path))
        return full if os.path.isdir(full) else os.path.dirname(full)

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
