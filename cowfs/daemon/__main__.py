"""`python -m cowfs.daemon CONFIG READY_FD`: started by `cowfs mount`, not by people."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from cowfs.daemon.process import Config, serve
from cowfs.store import steps

_DIE_AT = "COWFS_DIE_AT"
"""STEP:N in the environment: crash tests choose where this process ends (store/steps.py)."""


def main(config: str, ready_fd: int) -> int:
    """Serve; JSON lines on `ready_fd` say how mounting goes, the last one how it went."""

    def progress(phase: str, done: int, total: int) -> None:
        line = json.dumps({"phase": phase, "done": done, "total": total})
        os.write(ready_fd, line.encode() + b"\n")

    def tell(message: dict[str, Any]) -> None:
        os.write(ready_fd, json.dumps(message).encode() + b"\n")
        os.close(ready_fd)

    os.set_inheritable(ready_fd, False)
    step, _, passes = os.environ.get(_DIE_AT, "").partition(":")
    steps.arm(step, int(passes or 1))
    return serve(Config(**json.loads(config)), tell, foreground=False, progress=progress)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2])))
