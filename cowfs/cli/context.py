"""From the command line to the workspace: finding it, its daemon, or opening it without one.

The store's libraries take as long to import as all the rest, and most commands leave the work to
the daemon: they are imported where a workspace is opened.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from cowfs.cli import output
from cowfs.client import places
from cowfs.client.places import Place
from cowfs.client.rpc import Client, ConnectionFailedError
from cowfs.errors import (
    CowfsError,
    DaemonUnreachableError,
    NotAWorkspaceError,
    PermissionDeniedError,
    StoreMissingError,
    UsageError,
)
from cowfs.mounts import is_dead

if TYPE_CHECKING:
    from cowfs.service.engine import LocalEngine
    from cowfs.service.workspace import ReadOnly
    from cowfs.volume.history import Author

Progress = Callable[[dict[str, Any]], None]


def _must_be_ours(store: str) -> None:
    """Anybody can mount something that says it is a workspace, with a store made for who looks at
    it. Root looks into all. Raises PermissionDeniedError."""
    try:
        owner = os.stat(store).st_uid
    except OSError:
        return  # what there is to say is said by who opens it
    if owner != os.geteuid() != 0:
        raise PermissionDeniedError(detail=f"the store {store} belongs to user {owner}")


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
            raise UsageError(detail="the working directory does not exist any more") from None

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
        path = os.path.normpath(os.path.join(self.directory, directory or ""))
        place = places.find(path)
        if place is None:
            raise NotAWorkspaceError(path=path)
        _must_be_ours(place.store)
        return place

    def inside(self, place: Place, text: str) -> str:
        """A path of the command line relative to the workspace's top; "" is the top itself.

        A symbolic link in last place is meant itself. Raises UsageError for a path outside.
        """
        full = os.path.normpath(os.path.join(self.directory, text))
        if os.path.basename(text) in ("", ".", ".."):
            path = os.path.realpath(full)
        else:
            path = os.path.join(os.path.realpath(os.path.dirname(full)), os.path.basename(full))
        for top in (place.mountpoint, place.base):
            if places.is_below(path, top):
                return path[len(top.rstrip("/")) + 1 :]
        raise UsageError(detail=f"{text} is outside of the workspace {place.mountpoint}")

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


class Daemon:
    """A connection to a workspace's daemon. Errors of its answers are RpcError."""

    def __init__(self, place: Place, client: Client) -> None:
        self._place = place
        self._client = client

    def call(
        self, method: str, params: dict[str, Any] | None = None, progress: Progress | None = None
    ) -> Any:
        """Raises RpcError, DaemonUnreachableError."""
        try:
            return self._client.call(method, params, progress)
        except ConnectionFailedError as error:
            raise DaemonUnreachableError(path=self._place.mountpoint, detail=str(error)) from None

    def take_fd(self) -> int | None:
        return self._client.take_fd()

    def __enter__(self) -> Daemon:
        return self

    def __exit__(self, *exc: object) -> None:
        self._client.close()


def connect(place: Place) -> Daemon | None:
    """The daemon of a workspace, None when it is not mounted.

    Raises DaemonUnreachableError when it is mounted but nobody answers, PermissionDeniedError.
    """
    if not place.mounted:
        return None
    try:
        return Daemon(place, Client(place.store))
    except ConnectionFailedError as error:
        if error.errno in (errno.EACCES, errno.EPERM):
            raise PermissionDeniedError(
                detail=f"the store {place.store} is closed to this user"
            ) from None
        raise DaemonUnreachableError(path=place.mountpoint, detail=_silence(place)) from None


def _silence(place: Place) -> str:
    return "it is dead" if is_dead(place.mountpoint) else "nobody listens at its socket"


def base_descriptor(place: Place) -> int | None:
    """The base directory of a workspace that is not mounted, None when it is not there."""
    from cowfs.service.workspace import open_base

    try:
        return open_base(place.base)
    except PermissionError:
        raise PermissionDeniedError(detail=f"{place.base} cannot be read") from None
    except OSError:
        return None


def _fresh_base(place: Place, need_base: bool) -> int | None:
    """Have everything committed; the base directory's descriptor, None when it is not there."""
    try:
        daemon = connect(place)
    except DaemonUnreachableError:
        if need_base:
            raise
        return None
    if daemon is None:
        return base_descriptor(place)
    with daemon:
        daemon.call("flush")
        return daemon.take_fd()


@contextlib.contextmanager
def reading(place: Place, *, need_base: bool = True, damaged: bool = False) -> Iterator[ReadOnly]:
    """The workspace as of now, opened in this process, so that the daemon is not held up.

    need_base: content that only the base directory has is wanted; without, a dead daemon is no
    obstacle. damaged: as in `open_store`. Raises DaemonUnreachableError, PermissionDeniedError,
    and the errors of opening a store.
    """
    from cowfs.service import workspace

    base = _fresh_base(place, need_base)
    try:
        with workspace.reading(Path(place.store), base, damaged=damaged) as opened:
            yield opened
    finally:
        if base is not None:
            os.close(base)


@contextlib.contextmanager
def writing(place: Place) -> Iterator[LocalEngine]:
    """The workspace of a directory that is not mounted, opened for writing in this process.

    Raises StoreMissingError, StoreLockedError and the other errors of opening a store.
    """
    from cowfs.cli.progress import ProgressLine
    from cowfs.service import workspace
    from cowfs.service.engine import LocalEngine
    from cowfs.store.env import store_exists

    if not store_exists(Path(place.store)):
        raise StoreMissingError(path=place.store)
    base = base_descriptor(place)
    try:
        with ProgressLine() as line:
            volume = workspace.open_for_writing(Path(place.store), place.base, base, line.step)
        try:
            yield LocalEngine(volume)
        finally:
            volume.close()
    finally:
        if base is not None:
            os.close(base)


def author() -> Author:
    """Who runs this command."""
    import pwd

    from cowfs.volume.history import Author

    uid = os.getuid()
    try:
        name = pwd.getpwuid(uid).pw_name
    except KeyError:
        name = str(uid)
    line = " ".join(["cowfs", *sys.argv[1:]])
    return Author(uid, name, os.getpid(), output.valid(line)[:200])
