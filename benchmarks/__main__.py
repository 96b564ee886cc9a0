"""``python -m benchmarks`` is what ``scripts/bench`` runs."""

import sys

from benchmarks.cli import main

if __name__ == "__main__":
    sys.exit(main())
