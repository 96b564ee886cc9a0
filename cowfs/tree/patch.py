"""Git-style patches from old and new bytes.

Threading: pure functions.
"""

from __future__ import annotations


def is_binary(data: bytes) -> bool:
    """Whether content is no text: it has a NUL byte."""
    return b"\0" in data


def count_lines(old: bytes, new: bytes) -> tuple[int, int]:
    """(added, removed) lines."""
    raise NotImplementedError
