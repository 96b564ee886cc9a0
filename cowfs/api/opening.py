"""From a directory to its workspace: finding it, its daemon, or opening it without one.

The store's libraries take as long to import as all the rest, and most calls leave the work to
the daemon: they are imported where a workspace is opened.

Threading: stateless functions. A store can be open once in a process: who opens it in several
threads has to see to that (api/workspace.py does).
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cowfs.client import places
from cowfs.client.places import Place
from cowfs.client.rpc import Client, ConnectionFailedError
from cowfs.errors import (
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
"""Told the params of a progress notification (docs/protocol.md)."""
Step = Callable[[str, int, int], None]
"""Told how far an upgrade of the store is: what, how many of how many."""


def no_step(what: str, done: int, total: int) -> None:
    """A `Step` for those who do not want to know."""


def locate(directory: str) -> Place:
    """The workspace that holds a directory; `directory` is absolute and normal.

    Raises NotAWorkspaceError, PermissionDeniedError.
    """
    place = places.find(directory)
    if place is None:
        raise NotAWorkspaceError(path=directory)
    must_be_ours(place.store)
    return place


def must_be_ours(store: str) -> None:
    """Anybody can mount something that says it is a workspace, with a store made for who looks at
    it. Root looks into all. Raises PermissionDeniedError."""
    try:
        owner = os.stat(store).st_uid
    except OSError:
        return  # what there is to say is said by who opens it
    if owner != os.geteuid() != 0:
        raise PermissionDeniedError(detail=f"the store {store} belongs to user {owner}")


def inside(place: Place, text: str, directory: str) -> str:
    """A path, relative to `directory` if it is not absolute, relative to the workspace's top; "" is
    the top itself.

    A symbolic link in last place is meant itself. Raises UsageError for a path outside, and for an
    empty one: that is a script's variable that was not set, and the top would be all there is.
    """
    if not text:
        raise UsageError(detail="a path is empty; `.` is the directory itself")
    full = os.path.normpath(os.path.join(directory, text))
    if os.path.basename(text) in ("", ".", ".."):
        path = os.path.realpath(full)
    else:
        path = os.path.join(os.path.realpath(os.path.dirname(full)), os.path.basename(full))
    for top in (place.mountpoint, place.base):
        if places.is_below(path, top):
            return path[len(top.rstrip("/")) + 1 :]
    raise UsageError(detail=f"{text} is outside of the workspace {place.mountpoint}")


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


def status(
    place: Place, alone: AbstractContextManager[Any] | None = None
) -> tuple[dict[str, Any], bool]:
    """(the report of docs/protocol.md, "status"; whether it is mounted and its daemon answers);
    also of a workspace that is not. alone: entered to open the store."""
    mounted, problem = place.mounted, ""
    try:
        daemon = connect(place)
    except DaemonUnreachableError as error:
        daemon, mounted, problem = None, False, str(error)
    if daemon is not None:
        with daemon:
            return daemon.call("status", {"flush": True}), mounted
    from cowfs.service.status import stored_status

    with alone or contextlib.nullcontext():
        return stored_status(Path(place.store), place.mountpoint, problem), mounted


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
def writing(place: Place, step: Step = no_step) -> Iterator[LocalEngine]:
    """The workspace of a directory that is not mounted, opened for writing in this process.

    step: of an upgrade of the store. Raises StoreMissingError, StoreLockedError and the other
    errors of opening a store.
    """
    from cowfs.service import workspace
    from cowfs.service.engine import LocalEngine
    from cowfs.service.sessions.placing import finish_all
    from cowfs.store.env import store_exists

    if not store_exists(Path(place.store)):
        raise StoreMissingError(path=place.store)
    base = base_descriptor(place)
    try:
        volume = workspace.open_for_writing(Path(place.store), place.base, base, step)
        try:
            finish_all(volume)
            yield LocalEngine(volume)
        finally:
            volume.close()
    finally:
        if base is not None:
            os.close(base)


def author(command: str) -> Author:
    """Who runs this process. command: its command line, as it is to be kept."""
    import pwd

    from cowfs.volume.history import Author

    uid = os.getuid()
    try:
        name = pwd.getpwuid(uid).pw_name
    except KeyError:
        name = str(uid)
    return Author(uid, name, os.getpid(), command[:200])
