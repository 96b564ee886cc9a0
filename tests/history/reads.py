"""How much of the store is read: work is counted, not timed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from cowfs.store.snapshot import Reader
from cowfs.store.transaction import Cursor, Transaction


class Reads:
    """count: records that were looked up or passed, and places that were sought."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        monkeypatch.setattr(Transaction, "get", self._call(Transaction.get))
        monkeypatch.setattr(Transaction, "cursor", self._call(Transaction.cursor))
        monkeypatch.setattr(Reader, "cursor", self._call(Reader.cursor))
        monkeypatch.setattr(Reader, "keys", self._each(Reader.keys))
        for name in ("following", "following_keys", "preceding", "preceding_keys"):
            monkeypatch.setattr(Cursor, name, self._each(getattr(Cursor, name)))

    def _call(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        def counting(*args: Any, **kwargs: Any) -> Any:
            self.count += 1
            return plain(*args, **kwargs)

        return counting

    def _each(self, plain: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
        def counting(*args: Any, **kwargs: Any) -> Iterator[Any]:
            for item in plain(*args, **kwargs):
                self.count += 1
                yield item

        return counting
