"""What hooks leave behind: a log, and in which sessions something was said already.

Both are in the user's cowfs directory (client/places.py), and bounded. Whatever goes wrong with
them is no reason for a hook to fail.

Threading: for processes of their own, any number at a time.
"""

from __future__ import annotations

import os
import time

from cowfs.client import places

LOG = "hooks.log"
SAID = "hooks.said"
_LOG_BYTES = 256 << 10
_SAID_BYTES = 32 << 10


def note(line: str) -> None:
    """Add a line to the log."""
    text = "".join(char if char.isprintable() else " " for char in line)[:1000]
    moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    try:
        path = _path(LOG)
        if _append(path, f"{moment} {text}\n") > _LOG_BYTES:
            os.replace(path, path + ".1")
    except OSError:
        pass


def say_once(session: str, what: str) -> bool:
    """Whether something was not said in a session before; from now on it was."""
    line = f"{session} {what}".replace("\n", " ")
    try:
        path = _path(SAID)
        try:
            with open(path, encoding="utf-8", errors="replace") as file:
                before = file.read().split("\n")
        except FileNotFoundError:
            before = []
        if line in before:
            return False
        if _append(path, line + "\n") > _SAID_BYTES:
            kept = "\n".join(before[len(before) // 2 :]) + line + "\n"
            fresh = f"{path}.{os.getpid()}"
            opener = places.for_us_alone
            with open(fresh, "w", encoding="utf-8", errors="replace", opener=opener) as file:
                file.write(kept)
            os.replace(fresh, path)
    except OSError:
        return False  # better not at all than at every prompt
    return True


def _path(name: str) -> str:
    directory = places.data_directory()
    places.make_private(directory)
    return os.path.join(directory, name)


def _append(path: str, line: str) -> int:
    """Add to a file; returns how long it is then."""
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.write(fd, line.encode("utf-8", "replace"))
        return os.fstat(fd).st_size
    finally:
        os.close(fd)
