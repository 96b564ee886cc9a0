"""The cache of downloaded inputs, and the two clients that fill it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.system import BenchError

FETCH_SECONDS = 900.0


def cache_directory() -> Path:
    """Where inputs are kept between runs: ``$XDG_CACHE_HOME/cowfs-bench``."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(base) / "cowfs-bench"


def cached(name: str, make: Callable[[Path], None]) -> Path:
    """The directory *name* of the cache; ``make(directory)`` fills it the first time.

    It gets its name only when it is complete, so an interrupted run leaves nothing half made.
    Raises :class:`BenchError` when it cannot be made.
    """
    final = cache_directory() / name
    if final.exists():
        return final
    final.parent.mkdir(parents=True, exist_ok=True)
    print(f"fetching {name}", file=sys.stderr, flush=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=final.parent))
    try:
        make(partial)
        partial.rename(final)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return final


def fetch(argv: Sequence[str | Path], *, cwd: Path | None = None) -> None:
    """Run a client with the user's own settings, or raise :class:`BenchError` with its last line.

    Not ``run_tool``: indexes, proxies and certificates are in the user's environment.
    """
    try:
        done = subprocess.run(
            [os.fspath(part) for part in argv],
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=FETCH_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BenchError(f"{Path(argv[0]).name}: {error}") from error
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines() or ["no message"]
        raise BenchError(f"{Path(argv[0]).name} could not fetch: {lines[-1]}")


def pip_download(target: Path, *requirements: str, source: bool = False) -> None:
    """Fetch exactly these pinned packages, no dependencies: as wheels, or as source archives."""
    kind = "--no-binary" if source else "--only-binary"
    argv = [sys.executable, "-m", "pip", "download", "--quiet", "--no-input", "--no-deps"]
    fetch([*argv, kind, ":all:", "--dest", target, *requirements])
