"""Printing: one JSON document or text for people, errors, ages, sizes.

With `--json` stdout gets exactly one document, `{"ok": true, ...}` or `{"ok": false, "error":
{...}}`; the escapes of JSON are ASCII, so names that are not UTF-8 come out as lone surrogates
(`"\\udcff"` is the byte 0xff). Without it, such names are printed as the bytes that they are.

On the quick path: imports nothing but what Python has at hand.
"""

from __future__ import annotations

import codecs
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_SECOND = 1_000_000_000
_AGES = ((60, 1, "s"), (3600, 60, "min"), (172_800, 3600, "h"), (1_209_600, 86_400, "days"))


def prepare() -> None:
    """Let stdout take any text, whatever the locale, and be there even if it was closed."""
    codecs.register_error("cowfs", _instead)
    if sys.stdout is None:
        sys.stdout = open("/dev/null", "w", encoding="utf-8")  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open("/dev/null", "w", encoding="utf-8")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="cowfs")


def _instead(error: UnicodeError) -> tuple[bytes | str, int]:
    """What is written for a character that a stream cannot encode: the byte that a lone surrogate
    stands for, and of others the number, as `\\xfc` or `\\u20ac`."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    char = error.object[error.start]
    byte = ord(char) - 0xDC00
    instead = bytes((byte,)) if 0x80 <= byte <= 0xFF else char.encode("ascii", "backslashreplace")
    return instead, error.start + 1


def finish(code: int) -> int:
    """Flush stdout at the end of a command; returns the exit code, `code` if all is well.

    When nobody reads it any more the command ends quietly, with the code of a SIGPIPE. Raises
    OSError when it cannot be written for another reason.
    """
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        return broken_pipe()
    except OSError:
        broken_pipe()
        raise
    return code


def broken_pipe() -> int:
    """Drop what is left to print; returns the exit code of a SIGPIPE."""
    import os

    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)
    return 141


def text(line: str) -> None:
    """A line for people on stdout."""
    sys.stdout.write(line + "\n")


def note(line: str) -> None:
    """A line for people on stderr, beside the result."""
    sys.stderr.write(f"cowfs: {printable(line)}\n")


def document(fields: dict[str, Any]) -> None:
    """The JSON document of a command that succeeded."""
    _dump({"ok": True, **fields})


def error(fields: dict[str, Any], *, as_json: bool, result: dict[str, Any] | None = None) -> int:
    """Print an error in the JSON form of a CowfsError; returns the exit code.

    result: what the command has to say all the same, for the JSON document.
    """
    code = fields.get("exit_code", 70)
    if as_json:
        _dump({"ok": False, "error": fields, **(result or {})})
        return int(code)
    sys.stderr.write(f"cowfs: {printable(str(fields.get('message', 'error')))}\n")
    if hint := fields.get("hint"):
        sys.stderr.write(f"  hint: {printable(str(hint))}\n")
    return int(code)


def _dump(value: dict[str, Any]) -> None:
    import json

    sys.stdout.write(json.dumps(value) + "\n")


def valid(message: str) -> str:
    """A message from the command line, with what is not UTF-8 in it replaced."""
    if message.isascii():
        return message
    return message.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def printable(line: str) -> str:
    """Text with its control characters escaped: a file's name must not drive the terminal."""
    if line.isprintable():
        return line
    return "".join(
        char if char >= " " and char != "\x7f" else char.encode("unicode_escape").decode()
        for char in line
    )


def age(time_ns: int, now_ns: int) -> str:
    """How long ago, as people say it: "3 min ago"; a date when it is more than two weeks."""
    seconds = max(0, now_ns - time_ns) // _SECOND
    for limit, unit, name in _AGES:
        if seconds < limit:
            return f"{seconds // unit} {name} ago"
    import time

    return time.strftime("%Y-%m-%d", time.localtime(time_ns / _SECOND))


def size(count: int) -> str:
    """A number of bytes: "12.3 MiB"."""
    if count < 1024:
        return f"{count} B"
    value = float(count)
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        value /= 1024
        if value < 1024:
            return f"{value:.1f} {unit}"
    return f"{value / 1024:.1f} PiB"


def plural(count: int, one: str, many: str = "") -> str:
    """ "1 file", "2 files"."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def counts(fields: dict[str, int]) -> str:
    """The numbers of an epoch: "3 created, 1 deleted"."""
    parts = [f"{fields[key]:,} {key}" for key in ("created", "modified", "deleted") if fields[key]]
    return ", ".join(parts) or "no changes"
