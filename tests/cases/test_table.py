"""Every scenario has a test, and the table of them in docs/conformance.md is true."""

from __future__ import annotations

import ast
import re
from pathlib import Path

HERE = Path(__file__).resolve().parent
CASES = 28


def scenarios() -> dict[str, int]:
    """`file::test` of this directory to the number of the scenario in its name."""
    found = {}
    for file in sorted(HERE.glob("test_*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef):
                number = re.match(r"test_case_(\d\d)_", node.name)
                if number:
                    assert ast.get_docstring(node), f"{node.name}: what is the scenario?"
                    found[f"{file.name}::{node.name}"] = int(number[1])
    return found


def test_the_table_of_scenarios() -> None:
    page = (HERE.parents[1] / "docs/conformance.md").read_text(encoding="utf-8")
    table = page.partition("## Scenarios\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (\d+) \| ([^|]+) \| ([^|]+) \| [^|]*\|$", table, re.M)
    assert [int(row[0]) for row in rows] == list(range(1, CASES + 1))
    known, listed = scenarios(), set()
    for number, situation, proof in rows:
        assert situation, number
        names = re.findall(r"`(test_\w+\.py::\w+)`", proof)
        assert any(known[name] == int(number) for name in names), number
        listed.update(names)
    assert listed == known.keys()
