"""No room at every point of a commit, without a full disk: LMDB refuses the Nth thing asked of it.

The first attempt fails there, and the second one, which has the room of the reserve; further ones
until there is "room" again. Nothing of what was done may be lost, or be there twice.
"""

from __future__ import annotations

import errno
import itertools
import os
from collections.abc import Callable
from typing import Any

import pytest

from cowfs.errors import StoreFullError
from cowfs.store import writer as writing
from tests.support.volumes import Rig

BIG = os.urandom(150_000)


class Short:
    """A store that has room for so many writes in each transaction (None: for all)."""

    def __init__(self, rig: Rig) -> None:
        self.room: int | None = None
        self.most = 0
        store = rig.volume.store
        self._begin = store.begin
        store.begin = self.begin  # type: ignore[method-assign]

    def begin(self, *, write: bool = False) -> Any:
        txn = self._begin(write=write)
        return _Transaction(self, txn) if write else txn


class _Transaction:
    def __init__(self, short: Short, txn: Any) -> None:
        self._short = short
        self._txn = txn
        self._done = 0

    def _count(self) -> None:
        self._done += 1
        self._short.most = max(self._short.most, self._done)
        if self._short.room is not None and self._done > self._short.room:
            raise OSError(errno.ENOSPC, "No space left on device")

    def put(self, *args: Any, **kwargs: Any) -> Any:
        self._count()
        return self._txn.put(*args, **kwargs)

    def delete(self, *args: Any, **kwargs: Any) -> Any:
        self._count()
        return self._txn.delete(*args, **kwargs)

    def cursor(self, *args: Any, **kwargs: Any) -> Any:
        self._count()
        return self._txn.cursor(*args, **kwargs)

    def examining(self) -> _Transaction:
        self._txn = self._txn.examining()
        return self

    def __getattr__(self, name: str) -> Any:
        return getattr(self._txn, name)

    def __enter__(self) -> _Transaction:
        self._txn.__enter__()
        return self

    def __exit__(self, *exc: Any) -> None:
        if exc[0] is None:
            try:
                self._count()  # the commit itself
            except OSError:
                self._txn.abort()
                raise
        self._txn.__exit__(*exc)


def change_much(rig: Rig) -> None:
    """All kinds of records in one group, blocks that replace others, and garbage."""
    rig.mkdir(b"d")
    rig.create(b"d/new", BIG)
    rig.write(b"kept", b"changed" * 1000, 70_000)
    rig.setxattr(b"kept", b"user.a", b"1")
    rig.save(b"saved", BIG[::-1])
    rig.link(b"kept", b"d/link")
    rig.symlink(b"target", b"l")
    rig.unlink(b"gone")
    rig.rename(b"moved", b"d/moved")
    rig.truncate(b"short", 100)
    rig.truncate(b"empty", 0)


@pytest.fixture
def rig(volume: Rig, monkeypatch: pytest.MonkeyPatch) -> Rig:
    monkeypatch.setattr(writing, "_RETRY_SECONDS", 0.002)
    for name in (b"kept", b"saved", b"gone", b"moved", b"short", b"empty"):
        volume.create(name, name * 20_000)
    volume.volume.sync()
    return volume


def steps_of(rig: Rig, act: Callable[[Rig], None]) -> int:
    """How many things the commits of `act` ask of LMDB."""
    short = Short(rig)
    act(rig)
    rig.volume.sync()
    return short.most


def test_changes_survive_it(rig: Rig) -> None:
    change_much(rig)
    first = rig.checkpoint()
    expected = {path: facts.content for path, facts in rig.tree().items()}
    short = Short(rig)
    for room in itertools.count(0, 3):
        rig.restore("0123456789ab")  # everything is gone
        for name in (b"kept", b"saved", b"gone", b"moved", b"short", b"empty"):
            rig.create(name, name * 20_000)
        rig.volume.sync()
        short.room = room
        change_much(rig)
        group = rig.volume.quiesce()
        assert group is not None
        try:
            rig.volume.writer.wait(group, 30)
        except StoreFullError:
            assert rig.volume.full
        else:
            assert room > 30
            break
        assert rig.read(b"d/new") == BIG
        short.room = None
        rig.volume.sync()
        rig.evict()
        assert {path: facts.content for path, facts in rig.tree().items()} == expected
    short.room = None
    rig.restore(first)
    assert {path: facts.content for path, facts in rig.tree().items()} == expected


def test_a_restore_is_taken_back(rig: Rig) -> None:
    first = rig.checkpoint()
    change_much(rig)
    second = rig.checkpoint()
    before = rig.tree()

    def there_and_back(rig: Rig) -> None:
        rig.restore(first)
        rig.restore(second)

    total = steps_of(rig, there_and_back)
    short = Short(rig)
    for room in range(total):
        short.room = room
        with pytest.raises(StoreFullError):
            rig.restore(first)
        assert rig.tree() == before
        short.room = None
        rig.volume.sync()
        assert rig.tree() == before
    rig.restore(first)
    assert rig.read(b"gone") == b"gone" * 20_000


def test_a_checkpoint_is_there_when_there_is_room(rig: Rig) -> None:
    short = Short(rig)
    for room in range(8):
        rig.save(b"saved", b"%d" % room)
        short.room = room
        with pytest.raises(StoreFullError):
            rig.checkpoint(message=f"with room for {room}")
        short.room = None
        rig.volume.sync()
        rig.restore("@~1")
        assert rig.read(b"saved") == b"%d" % room
