"""Applying without a daemon, and what `apply` and `unmount` say about it."""

from __future__ import annotations

from typing import Any

from cowfs.api.unmounting import apply_offline
from cowfs.cli import context as opening
from cowfs.cli import output
from cowfs.cli.progress import ProgressLine
from cowfs.client.places import Place

_WORDS = {
    "created": "created",
    "written": "written",
    "deleted": "deleted",
    "moved": "moved",
    "attributes": "with other attributes",
}

_PHASES = {"save": "saving old content"}


def offline(place: Place, *, dry_run: bool = False) -> dict[str, Any]:
    """Apply a workspace that is not mounted. Raises ApplyConflictError and what opening raises."""
    with ProgressLine() as line:
        return apply_offline(place, opening.author(), shown_on(line), line.step, dry_run=dry_run)


def shown_on(line: ProgressLine) -> opening.Progress:
    """Where progress notifications go."""

    def show(params: dict[str, Any]) -> None:
        what = _PHASES.get(params.get("phase", ""), "applying")
        line.step(what, params.get("done", 0), params.get("total"), params.get("path", ""))

    return show


def summary(applied: dict[str, Any], *, dry_run: bool = False) -> str:
    """What was applied, in words; one more line for each problem."""
    parts = [f"{applied[key]:,} {word}" for key, word in _WORDS.items() if applied.get(key)]
    text = ("would apply: " if dry_run else "applied: ") + (", ".join(parts) or "nothing to do")
    for problem in applied.get("problems", ()):
        text += "\n  " + output.printable(f"{problem.get('path', '')}: {problem.get('detail', '')}")
    return text
