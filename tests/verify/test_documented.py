"""docs/format.md lists the checks that there are, and every one of them has a test."""

from __future__ import annotations

import re
from pathlib import Path

import cowfs.service.verify
from tests.verify.test_checks import CASES

ELSEWHERE = {
    "structure": "test_structure.py",
    "record-checksum": "test_fields.py",
    "dictionary": "test_condensed.py",
    "record-count": "test_sums.py",
    "record-sum": "test_sums.py",
    "mount-entries": "test_mounted.py",
    "mount-attributes": "test_mounted.py",
    "mount-target": "test_mounted.py",
    "mount-xattr": "test_mounted.py",
    "mount-content": "test_mounted.py",
    "unreferenced-blocks": "test_notes.py",
    "leftover": "test_notes.py",
    "content-lost": "test_notes.py",
    "block-lost": "test_repair.py",
    "record-lost": "test_repair.py",
}
"""Checks that have their tests in other files."""


def documented() -> list[str]:
    page = Path(__file__).parents[2] / "docs" / "format.md"
    text = page.read_text(encoding="utf-8").partition("## What verify checks")[2]
    return re.findall(r"^\| `([a-z-]+)` \|", text, re.M)


def test_every_check_is_documented_once_and_tested() -> None:
    tested = {case.check for case in CASES.values()} | ELSEWHERE.keys()
    assert sorted(documented()) == sorted(tested)


def test_every_check_in_the_code_is_documented() -> None:
    """The names are the first string of a call that reports something."""
    names = set()
    for source in Path(cowfs.service.verify.__file__).parent.glob("*.py"):
        text = source.read_text(encoding="utf-8")
        calls = (
            r"(?:problem|_fault|_found|_difference|_entry_problem|Bad|_unchanged)\(\s*\"([a-z-]+)\""
        )
        names |= set(re.findall(calls, text)) - {"inode", "dirent", "xattr"}
    assert len(names) > 30
    assert names <= set(documented())


def test_the_other_files_test_what_they_should() -> None:
    for check, name in ELSEWHERE.items():
        assert check in (Path(__file__).parent / name).read_text(encoding="utf-8")
