"""The examples of docs/api.md are whole programs, and print what the page says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from cowfs import AsyncWorkspace, Workspace
from tests.cli.command import Cowfs

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^```python\n(.*?)^```\n(?:\n^```text\n(.*?)^```\n)?", PAGE, re.M | re.S)
"""(program, what it prints or "" where the page does not say)."""


@pytest.fixture
def shop(cowfs: Cowfs) -> Path:
    """The project of the page."""
    shop = cowfs.top / "shop"
    (shop / "src").mkdir(parents=True)
    (shop / "README.md").write_text("# shop\n")
    (shop / "src" / "cart.py").write_text("total = 1\n")
    return shop


@pytest.mark.usefixtures("needs_fuse", "shop")
@pytest.mark.parametrize(("program", "printed"), EXAMPLES, ids=range(1, len(EXAMPLES) + 1))
def test_the_examples_of_the_page(cowfs: Cowfs, program: str, printed: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        cwd=cowfs.top,
        env=cowfs.env,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    if printed:
        assert done.stdout == printed
    assert not cowfs.mounts()


def test_the_examples_have_right_types(tmp_path: Path) -> None:
    pytest.importorskip("mypy", reason="mypy is not installed")
    for number, (program, _) in enumerate(EXAMPLES, start=1):
        (tmp_path / f"example_{number}.py").write_text(program)
    # A cache of its own: that of the project is for other options.
    cache = ROOT / ".mypy_cache" / "examples" if os.access(ROOT, os.W_OK) else tmp_path / "cache"
    options = ["--strict", "--config-file=", f"--cache-dir={cache}"]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *options, str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "MYPYPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_method_is_on_the_page() -> None:
    for kind in (Workspace, AsyncWorkspace):
        for name in vars(kind):
            if not name.startswith("_") and name != "pages":
                assert re.search(rf"\b(ws|Workspace|AsyncWorkspace)\.{name}\b", PAGE), name
