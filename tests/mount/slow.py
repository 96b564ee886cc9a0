"""`python -m tests.mount.slow CONFIG READY_FD`: a daemon that takes its time before it looks at a
file that was closed, through the mount. It notes each in a file beside its log, a byte a look."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from cowfs.daemon.__main__ import main
from cowfs.mount.kernel import Kernel


def _look_slowly(self: Kernel, ino: int) -> None:
    with Path(self._loop.volume.store.path, "looking").open("ab") as looks:
        looks.write(b".")
    with self._ghosts.alone() as hidden, hidden.name(ino) as name:
        time.sleep(2)
        os.stat(name, dir_fd=hidden.fd, follow_symlinks=False)


if __name__ == "__main__":
    Kernel._forget_closed = _look_slowly  # type: ignore[method-assign]
    sys.exit(main(sys.argv[1], int(sys.argv[2])))
