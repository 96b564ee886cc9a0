"""Why libfuse could not mount: it and fusermount3(1) only print that.

Threading: for the main thread, while no other one prints.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from cowfs.errors import FuseUnavailableError

_MOST_BYTES = 4000
_ADVICE = (
    (
        "user_allow_other",
        "Mount without --allow-other, or let root add the line user_allow_other to /etc/fuse.conf.",
    ),
    ("mount_max", "Unmount others, or let root raise mount_max in /etc/fuse.conf."),
    ("mounting over filesystem type", "Name an empty directory elsewhere with --at DIR."),
)
"""Of a message a part, and what to do."""
_OTHER_ADVICE = "Is fuse3 installed (fusermount3)? The daemon's log has libfuse's own message."


@contextlib.contextmanager
def explained() -> Iterator[None]:
    """Around a mount: what is printed meanwhile is the detail of its error.

    Raises FuseUnavailableError.
    """
    stderr, said = os.dup(2), os.memfd_create("cowfs-said")
    try:
        os.dup2(said, 2)
        try:
            yield
        except RuntimeError as error:
            failure = str(error)
        else:
            failure = ""
        finally:
            os.dup2(stderr, 2)
        text = os.pread(said, _MOST_BYTES, 0)
        with contextlib.suppress(OSError):
            os.write(2, text)
    finally:
        os.close(stderr)
        os.close(said)
    if failure:
        lines = text.decode("utf-8", "replace").split("\n")
        found = next((line.strip() for line in reversed(lines) if line.strip()), failure)
        detail = found.removeprefix("fusermount3: ")
        advice = next((advice for part, advice in _ADVICE if part in detail), _OTHER_ADVICE)
        raise FuseUnavailableError(detail=detail, advice=advice)
