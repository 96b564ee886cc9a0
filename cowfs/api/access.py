"""How a `Workspace` gets to its workspace: where it is, its daemon, its store; and its errors.

Threading: as `Workspace`. Nothing is held between two calls: each makes its own connection to the
daemon, or opens the store and closes it. LMDB allows a store to be open once in a process, so calls
that open the same one take turns, also those of different `Workspace`s.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Self

from cowfs.api import opening
from cowfs.api.results import Checkpoint
from cowfs.client import places
from cowfs.client.places import Place
from cowfs.client.rpc import RpcError
from cowfs.errors import CowfsError, InternalError, UsageError, as_cowfs_error, from_json

if TYPE_CHECKING:
    from cowfs.service.engine import LocalEngine
    from cowfs.service.workspace import ReadOnly

Paths = Iterable[str | os.PathLike[str]]
"""Paths relative to the top of the workspace, or absolute ones inside of it."""
Named = str | Checkpoint
"""A checkpoint, or text that names one: an id, at least 4 digits of one, a label, "@~1" ..."""

turns: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
"""One lock for each store that was opened in this process."""


@contextlib.contextmanager
def ours() -> Iterator[None]:
    """What a daemon answers and what the system refuses is a CowfsError; a defect stays what it
    is."""
    try:
        yield
    except CowfsError:
        raise
    except RpcError as error:
        raise from_json(error.error) from None
    except Exception as error:
        known = as_cowfs_error(error)
        if isinstance(known, InternalError) and not isinstance(error, OSError):
            raise
        raise known from error


def absolute(path: str | os.PathLike[str]) -> str:
    """A path from the working directory."""
    return os.path.normpath(os.path.join(places.current_directory(), os.fspath(path)))


class Access:
    """What `Workspace` is made from."""

    def __init__(self, place: Place) -> None:
        """Not for programs."""
        self._place = place
        self._closed = False

    @property
    def base(self) -> str:
        """The directory that it was made from, absolute."""
        return self._place.base

    @property
    def path(self) -> str:
        """Where it is mounted, or was last: where its files are, absolute."""
        return self._located().mountpoint

    @property
    def store(self) -> str:
        """The directory of its store, absolute."""
        return self._place.store

    @property
    def mounted(self) -> bool:
        """Whether it is mounted now."""
        return self._located().mounted

    # -- the end --------------------------------------------------------------------------------

    def close(self) -> None:
        """Further calls are errors. The workspace stays as it is."""
        self._closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<cowfs.Workspace {self.base!r}>"

    # -- how ------------------------------------------------------------------------------------

    def _located(self) -> Place:
        """Where it is now: it may have been mounted or unmounted since. Raises UsageError."""
        if self._closed:
            raise UsageError(detail="this Workspace is closed")
        for mountpoint, store in places.mounts():
            if store == self._place.store:
                self._place = Place(self._place.base, mountpoint, store, mounted=True)
                return self._place
        old = self._place
        return Place(old.base, old.mountpoint, old.store, mounted=False)

    @contextlib.contextmanager
    def _daemon(self) -> Iterator[opening.Daemon | None]:
        daemon = opening.connect(self._located())
        if daemon is None:
            yield None
            return
        with daemon:
            yield daemon

    @contextlib.contextmanager
    def _reading(self, *, need_base: bool = True) -> Iterator[ReadOnly]:
        place = self._located()
        with turns[place.store], opening.reading(place, need_base=need_base) as workspace:
            yield workspace

    @contextlib.contextmanager
    def _writing(self) -> Iterator[LocalEngine]:
        place = self._located()
        with turns[place.store], opening.writing(place) as engine:
            yield engine

    def _inside(self, paths: Paths) -> list[bytes]:
        """Relative to the top, as bytes."""
        if isinstance(paths, str | bytes | os.PathLike):
            raise UsageError(detail="paths is a list of paths, not one")
        found = [self._inner(path) for path in paths]
        return [] if b"" in found else found

    def _inner(self, path: str | os.PathLike[str]) -> bytes:
        place = self._located()
        try:
            return os.fsencode(opening.inside(place, os.fspath(path), place.mountpoint))
        except ValueError:  # a NUL, or a surrogate that stands for no byte
            raise UsageError(detail=f"{path!r} cannot be a path") from None

    @staticmethod
    def _epoch(workspace: ReadOnly, checkpoint: Named) -> int:
        """The epoch that a checkpoint sealed; the open one is above all."""
        found = workspace.point(str(checkpoint)).checkpoint
        return found.epoch if found else workspace.branch.head
