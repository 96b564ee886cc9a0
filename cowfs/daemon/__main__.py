"""`python -m cowfs.daemon CONFIG READY_FD`: started by `cowfs mount`, not by people."""

from __future__ import annotations

import json
import sys

from cowfs.daemon.process import Config, serve

if __name__ == "__main__":
    sys.exit(serve(Config(**json.loads(sys.argv[1])), int(sys.argv[2]), foreground=False))
