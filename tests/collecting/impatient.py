"""`python -m tests.collecting.impatient CONFIG READY_FD`: a daemon that takes a look into a
checkpoint to be over as soon as nothing of it is in use."""

from __future__ import annotations

import sys

from cowfs.daemon.__main__ import main
from cowfs.volume import browsing

if __name__ == "__main__":
    browsing._RECENT_SECONDS = 0.0
    sys.exit(main(sys.argv[1], int(sys.argv[2])))
