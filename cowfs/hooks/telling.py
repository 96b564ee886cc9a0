"""What a hook says: to the agent's model in facts, to the user in a line.

Threading: pure functions.
"""

from __future__ import annotations

import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_MOST = 1400
"""Characters in a line: Claude Code takes 10,000 in all."""
_LISTS = (
    ("created", "created"),
    ("modified", "modified"),
    ("attributes", "mode, owner or attributes changed"),
    ("deleted", "deleted"),
)
_FILE_TOOLS = ("Edit", "Write", "MultiEdit", "NotebookEdit")


def clean(text: str) -> str:
    """Text in one line, with all that is not printable replaced."""
    text = text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def changes(found: dict[str, Any], tool: str) -> str:
    """What a tool call changed, in a few lines (`Changes` in service/sessions/marks.py)."""
    since = str(found["since"])[:8]
    lines = [
        f"cowfs: {'also changed' if tool in _FILE_TOOLS else 'changed'} while this ran"
        f" (checkpoint {since} is the state before it):"
    ]
    if found["many"]:
        lines.append(f"more than a thousand files and directories; `cowfs diff {since}` lists them")
    for name, words in _LISTS:
        if rows := found[name]:
            lines.append(f"{words}: {', '.join(map(_named, rows))}")
    if rows := found["renamed"]:
        pairs = (f"{clean(row['old_path'])} -> {clean(row['path'])}" for row in rows)
        lines.append(f"renamed: {', '.join(pairs)}")
    left = [f"{count:,} in {clean(path)}" for path, count in found["aside"].items()]
    if found["more"]:
        left.append(f"{found['more']:,} more (`cowfs diff {since}`)")
    if left:
        lines.append(f"not listed: {', '.join(left)}")
    if others := found["others"]:
        calls = "another tool call" if others == 1 else f"{others} other tool calls"
        lines.append(f"{calls} ran at the same time; some of this may be theirs")
    return "\n".join(line if len(line) <= _MOST else line[:_MOST] + " …" for line in lines)


def _named(row: dict[str, Any]) -> str:
    inside = row.get("inside", 0)
    return clean(row["path"]) + (f" ({inside:,} inside)" if inside else "")


def interrupted(rows: list[dict[str, Any]]) -> str:
    """Sessions that were broken off, and how to go on with them."""
    lines = []
    for row in rows:
        moment = time.strftime("%Y-%m-%d %H:%M", time.localtime(row["last"] / 1e9))
        asked = clean(row["title"] or row["prompt"].strip().partition("\n")[0])[:120]
        about = f' ("{asked}")' if asked else ""
        lines.append(
            f"cowfs: a session of {clean(row['agent'])} in this workspace was interrupted,"
            f" last heard of at {moment}{about}."
            f" `cowfs resume {clean(row['id'])}` in a terminal goes on with it."
        )
    return "\n".join(lines)


def not_mounted(path: str, known: bool) -> str:
    """There is no mount."""
    if known:
        return (
            f"cowfs: {clean(path)} is not mounted, so nothing is recorded;"
            f" `cowfs mount {clean(path)}` mounts it"
        )
    return (
        f"cowfs: {clean(path)} is in no cowfs workspace, so nothing is recorded;"
        " `cowfs mount DIR` makes one of its project's directory"
    )
