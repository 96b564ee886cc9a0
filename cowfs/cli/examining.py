"""What `cowfs doctor` looks at: this machine, the mounts, the stores.

Each check looks only and yields what it found; none raises, since a doctor is called when things
are broken.

Threading: stateless functions.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import resource
import shutil
import stat
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cowfs.client import places
from cowfs.client.rpc import Client, ConnectionFailedError, RpcError
from cowfs.errors import CowfsError, as_cowfs_error
from cowfs.mounts import FUSE_DEVICE, fuse_fault, is_dead

OK, NOTE, BAD = "ok", "note", "bad"

_LIBRARIES = ("pyfuse3", "trio", "lmdb", "zstandard", "blake3", "msgspec", "click", "tomlkit")
_OLDEST_PYTHON = (3, 11)
_OLDEST_KERNEL = (5, 10)
"""Older ones were never tried."""
_FEW_FILES = 1024
_LITTLE_ROOM = 1 << 30
_NO_ROOM = 64 << 20
"""Bytes free where a store lies."""
_LOG_BYTES = 256 << 10
_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at. state: OK, NOTE (works, but), BAD. advice: what to do."""

    state: str
    subject: str
    detail: str
    advice: str = ""

    def to_json(self) -> dict[str, str]:
        return {
            "state": self.state,
            "subject": self.subject,
            "detail": self.detail,
            "advice": self.advice,
        }


def examine(here: str) -> Iterator[Finding]:
    """Everything; `here`: a directory of the workspace that is meant, if it is in one."""
    yield from machine()
    yield from dead_mounts()
    known = {row["store"]: row for row in places.registry()}
    place = places.find(here)
    if place is not None:
        known[place.store] = {"base": place.base, "store": place.store}
    live = {store: mountpoint for mountpoint, store in places.mounts()}
    for store, row in known.items():
        yield from workspace(row["base"], store, live.get(store))
    if not known:
        yield Finding(NOTE, "workspaces", "there are none yet", "`cowfs mount DIR` makes one.")


# -- the machine --------------------------------------------------------------------------------


def machine() -> Iterator[Finding]:
    """Python, libraries, kernel, FUSE, limits."""
    version = ".".join(str(part) for part in sys.version_info[:3])
    old = sys.version_info[:2] < _OLDEST_PYTHON
    yield Finding(
        BAD if old else OK, "python", version, "cowfs needs 3.11 or newer." if old else ""
    )
    yield _libraries()
    yield _kernel(os.uname().release)
    yield _device(FUSE_DEVICE)
    yield _fusermount()
    yield _control("/sys/fs/fuse/connections")
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    few = soft < _FEW_FILES
    advice = f"`ulimit -n {_FEW_FILES}` before `cowfs mount`." if few else ""
    yield Finding(NOTE if few else OK, "open files", f"a process may have {soft}", advice)


def _libraries() -> Finding:
    missing = [name for name in _LIBRARIES if importlib.util.find_spec(name) is None]
    if missing:
        advice = "Install cowfs again; `scripts/setup` does it in a checkout."
        return Finding(BAD, "libraries", f"missing: {', '.join(missing)}", advice)
    versions = []
    for name in _LIBRARIES:
        try:
            versions.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            versions.append(name)
    return Finding(OK, "libraries", ", ".join(versions))


def _kernel(release: str) -> Finding:
    numbers = release.split("-")[0].split(".")
    try:
        old = (int(numbers[0]), int(numbers[1])) < _OLDEST_KERNEL
    except (ValueError, IndexError):
        old = True
    advice = "cowfs was never tried with one older than 5.10." if old else ""
    return Finding(NOTE if old else OK, "kernel", release, advice)


def _device(path: str) -> Finding:
    if fault := fuse_fault(path):
        return Finding(BAD, "fuse", *fault)
    return Finding(OK, "fuse", f"{path} can be opened")


def _fusermount() -> Finding:
    path = shutil.which("fusermount3")
    if path is None:
        advice = "As root: install the package fuse3."
        if os.geteuid() == 0:
            return Finding(NOTE, "fusermount3", "not installed; root does without", advice)
        return Finding(BAD, "fusermount3", "not installed", advice)
    if os.geteuid() != 0:
        st = os.stat(path)
        if st.st_uid != 0 or not st.st_mode & stat.S_ISUID:
            advice = f"As root: chown root {path} && chmod u+s {path}"
            return Finding(BAD, "fusermount3", f"{path} is not setuid root", advice)
    return Finding(OK, "fusermount3", path)


def _control(path: str) -> Finding:
    if os.geteuid() == 0 or os.path.ismount(path):
        return Finding(OK, "fuse control", "a mount whose daemon was killed can be freed")
    detail = f"{path} is not mounted: a mount whose daemon was killed may need root to free it"
    return Finding(NOTE, "fuse control", detail, f"As root: mount -t fusectl none {path}")


# -- mounts and stores --------------------------------------------------------------------------


def dead_mounts() -> Iterator[Finding]:
    """Mounts that lost their daemon."""
    for mountpoint, store in places.mounts():
        if _is_dead(mountpoint, store):
            base = places.base_of(store) or mountpoint
            advice = f"`cowfs mount {base}` cleans up and mounts again; nothing committed is lost."
            yield Finding(BAD, "mount", f"{mountpoint} is dead, its daemon was killed", advice)


def _is_dead(mountpoint: str, store: str) -> bool:
    """Whether a mount lost its daemon. One that is only stopped is not asked: its mount, too, would
    not answer. Nor may one that is not ready yet, or hangs; who asks it waits in vain."""
    try:
        Client(store, timeout=_SECONDS).close()
        return False
    except ConnectionFailedError:
        found: list[bool] = []
        asking = threading.Thread(target=lambda: found.append(is_dead(mountpoint)), daemon=True)
        asking.start()
        asking.join(_SECONDS)
        return any(found)


def workspace(base: str, store: str, mountpoint: str | None) -> Iterator[Finding]:
    """One workspace: its directory, its store, its daemon."""
    if base != mountpoint and not os.path.isdir(base):
        advice = "The history is in the store: `cowfs export @ DEST` in a directory of that name."
        yield Finding(BAD, base, "the directory is not there", advice)
    try:
        st = os.stat(store)
        os.stat(os.path.join(store, "data.mdb"))
    except FileNotFoundError:
        advice = "Is its disk mounted? Without the store the history is lost, the directory is not."
        yield Finding(BAD, base, f"its store {store} is not there", advice)
        return
    except OSError as error:
        yield Finding(BAD, base, f"its store {store} cannot be read: {error.strerror}")
        return
    if st.st_mode & 0o077:
        advice = f"chmod 700 {store}"
        yield Finding(BAD, base, f"others can look into its store {store}", advice)
    yield _room(base, store)
    yield from _copy(base, store)
    yield from _settings(base, store)
    if mountpoint is not None and not _is_dead(mountpoint, store):
        yield _daemon(base, store)
    elif mountpoint is None:
        yield from _unmounted(base, store)
    yield from _log(base, store)


def _room(base: str, store: str) -> Finding:
    free = os.statvfs(store)
    left = free.f_bavail * free.f_frsize
    detail = f"{left >> 20:,} MiB free where its store lies"
    if left >= _LITTLE_ROOM:
        return Finding(OK, base, detail)
    advice = f"Free room on the file system of {store}; nothing is lost when it is full."
    return Finding(BAD if left < _NO_ROOM else NOTE, base, detail, advice)


def _copy(base: str, store: str) -> Iterator[Finding]:
    from cowfs.store.upgrade import KEPT, kept_bytes

    if size := kept_bytes(Path(store)):
        detail = f"its store was upgraded; {KEPT} ({size >> 20:,} MiB) is the one of before"
        advice = f"`cowfs -C {base} verify` removes it when the new one is sound."
        yield Finding(NOTE, base, detail, advice)
    for path in sorted(Path(store).glob("data.mdb.damaged*")):
        detail = f"a repair kept the damaged file {path} ({path.stat().st_size >> 20:,} MiB)"
        yield Finding(NOTE, base, detail, "Delete it when nothing in it is wanted any more.")


def _settings(base: str, store: str) -> Iterator[Finding]:
    """What is wrong in the configuration: a daemon takes the defaults for it."""
    from cowfs.service.config import read

    for problem in read(Path(store)).problems:
        yield Finding(NOTE, base, str(problem), f"`cowfs -C {base} config --edit` opens it.")


def _daemon(base: str, store: str) -> Finding:
    try:
        with Client(store, timeout=_SECONDS) as client:
            report = client.call("status")
    except (ConnectionFailedError, RpcError, OSError) as error:
        advice = "Is it stopped (`kill -CONT`)? Else end it: kill its process, `cowfs mount` again."
        return Finding(BAD, base, f"its daemon does not answer: {error}", advice)
    if problems := report["health"]["problems"]:
        advice = f"`cowfs -C {base} status` lists them."
        return Finding(NOTE, base, f"mounted; {len(problems)} things to know", advice)
    return Finding(OK, base, f"mounted, daemon pid {report['pid']} answers")


def _unmounted(base: str, store: str) -> Iterator[Finding]:
    from cowfs.service import workspace as opening

    try:
        with opening.reading(Path(store), None) as opened:
            applying = opened.reader.get("meta", b"applying")
    except CowfsError as error:
        yield Finding(BAD, base, str(error), error.hint)
        return
    except Exception as error:
        known = as_cowfs_error(error)
        yield Finding(BAD, base, f"its store cannot be opened: {known}", known.hint)
        return
    if applying:
        advice = f"`cowfs apply {base}` finishes it; the store has everything."
        yield Finding(BAD, base, "an apply was interrupted", advice)
    elif os.path.exists(os.path.join(store, "daemon.pid")):
        advice = f"`cowfs mount {base}` goes on with what was committed."
        yield Finding(NOTE, base, "not mounted; its daemon was killed", advice)
    else:
        yield Finding(OK, base, "not mounted; its store can be opened")


def _log(base: str, store: str) -> Iterator[Finding]:
    """Errors that the daemon logged since it was started last."""
    path = os.path.join(store, "daemon.log")
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.path.getsize(path) - _LOG_BYTES))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return
    lines = text[max(0, text.rfind(": mounted ")) :].split("\n")
    errors = [line for line in lines if " ERROR " in line]
    if errors:
        last = errors[-1].split(" ERROR ", 1)[1]
        yield Finding(NOTE, base, f"its log has {len(errors)} errors, at last: {last}", path)
