"""Where workspaces are: live mounts from the kernel, all others from a small registry.

A live mount names its store as its source in /proc/self/mountinfo. The registry is the file
`workspaces.json` in the user's cowfs directory (`$XDG_DATA_HOME/cowfs`, by default
`~/.local/share/cowfs`), which also holds the stores that were not put elsewhere.

Paths are text with the bytes that are not UTF-8 as lone surrogates, as everywhere in Python.

Threading: stateless functions.
"""

from __future__ import annotations

import os

from cowfs import mounts as kernel
from cowfs.client import lean

TYPE = "fuse.cowfs"

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Place:
    """One workspace. All paths are absolute.

    base: the directory it was made from; mountpoint: where it is (or was last) mounted.
    mounted: whether the kernel has a mount there now.
    """

    __slots__ = ("base", "mounted", "mountpoint", "store")

    def __init__(self, base: str, mountpoint: str, store: str, *, mounted: bool) -> None:
        self.base = base
        self.mountpoint = mountpoint
        self.store = store
        self.mounted = mounted

    @property
    def in_place(self) -> bool:
        """Whether it is mounted over the directory itself."""
        return self.base == self.mountpoint

    def __repr__(self) -> str:
        return f"Place({self.base!r}, {self.mountpoint!r}, {self.store!r}, {self.mounted})"


def home_directory() -> str:
    """The user's home: HOME, or what the password database says where that is no absolute path, as
    the XDG Base Directory Specification has it for its own variables; "/" without any."""
    home = os.environ.get("HOME", "")
    if os.path.isabs(home):
        return home
    import pwd

    try:
        home = pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:
        return "/"
    return home if os.path.isabs(home) else "/"


def xdg_directory(variable: str, *below_home: str) -> str:
    """A directory of the XDG Base Directory Specification: what the variable says, if that is an
    absolute path; else the one below the user's home."""
    found = os.environ.get(variable, "")
    return found if os.path.isabs(found) else os.path.join(home_directory(), *below_home)


def data_directory() -> str:
    """The user's cowfs directory."""
    return os.path.join(xdg_directory("XDG_DATA_HOME", ".local", "share"), "cowfs")


def make_private(directory: str) -> None:
    """Make a directory, and what is missing above it, for this user alone, whatever the umask says:
    mode 0700, as the XDG Base Directory Specification has it. Raises OSError."""
    if os.path.isdir(directory):
        return
    make_private(os.path.dirname(directory))
    try:
        os.mkdir(directory, 0o700)
    except FileExistsError:
        if not os.path.isdir(directory):
            raise


def for_us_alone(path: str, flags: int) -> int:
    """An opener for open(): what it makes has mode 0600, whatever the umask says."""
    return os.open(path, flags, 0o600)


def _unquote(source: str) -> str:
    """The store's path of a mount's source, in which the daemon wrote odd bytes as %XX.

    Anybody can mount something with any source: what is no such text stays as it is.
    """
    if "%" not in source:
        return source
    first, *parts = source.split("%")
    data = os.fsencode(first)
    for part in parts:
        digits = part[:2]
        if len(digits) != 2 or digits.strip("0123456789ABCDEF"):
            return source
        data += bytes((int(digits, 16),)) + os.fsencode(part[2:])
    return os.fsdecode(data)


def mounts() -> list[tuple[str, str]]:
    """(mountpoint, store) of every cowfs mount that this process can see, in mount order."""
    return [(row.mountpoint, _unquote(row.source)) for row in kernel.mounts(kind=TYPE)]


def registry(directory: str | None = None) -> list[dict[str, str]]:
    """The registered workspaces: base, mountpoint, store. A missing or damaged file is empty."""
    path = os.path.join(directory or data_directory(), "workspaces.json")
    wanted = ("base", "mountpoint", "store")
    found = _json(path).get("workspaces")
    rows = found if isinstance(found, list) else []
    return [r for r in rows if isinstance(r, dict) and all(_is_path(r.get(k)) for k in wanted)]


def _json(path: str) -> dict[str, Any]:
    """The JSON object in a file; an empty one when there is none."""
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            found = lean.loads(file.read())
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _is_path(text: object) -> bool:
    """Whether something can be an absolute path."""
    if not isinstance(text, str) or not text.startswith("/") or "\0" in text:
        return False
    try:
        os.fsencode(text)
    except UnicodeEncodeError:  # surrogates that stand for no byte
        return False
    return True


def registered_store(base: str) -> str | None:
    """The store that a base directory was last mounted with."""
    return next((row["store"] for row in registry() if row["base"] == base), None)


def register(base: str, mountpoint: str, store: str) -> None:
    """Add or replace a workspace in the registry (atomic; concurrent callers are serialised).

    Raises OSError.
    """
    import fcntl
    import json

    directory = data_directory()
    make_private(directory)
    path = os.path.join(directory, "workspaces.json")
    with open(path + ".lock", "w", encoding="utf-8", opener=for_us_alone) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        rows = [r for r in registry(directory) if r["base"] != base and r["store"] != store]
        rows.append({"base": base, "mountpoint": mountpoint, "store": store})
        fresh = open(  # noqa: SIM115 - the line would be too long
            path + ".new", "w", encoding="utf-8", errors="surrogateescape", opener=for_us_alone
        )
        with fresh as file:
            json.dump({"workspaces": rows}, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        os.replace(path + ".new", path)


def is_below(path: str, top: str) -> bool:
    """Whether `path` is `top` or inside it; both absolute and normal."""
    return path == top or top == "/" or path.startswith(top + "/")


def current_directory() -> str:
    """The working directory, also when it was removed: it still says which workspace is meant.

    Raises FileNotFoundError when not even that is known.
    """
    try:
        return os.getcwd()
    except FileNotFoundError:
        path = os.readlink("/proc/self/cwd")
        if not path.startswith("/"):
            raise
        return path.removesuffix(" (deleted)")


def base_of(store: str) -> str | None:
    """The base directory that a store says it belongs to, None when it does not say."""
    base = _json(os.path.join(store, "workspace.json")).get("base")
    return base if _is_path(base) else None


def is_stopped(pid: int) -> bool:
    """Whether a process is stopped by a signal or a debugger (state T or t in proc_pid_stat(5))."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b") ")[2][:1] in (b"T", b"t")
    except OSError:
        return False


def daemon_is_stopped(store: str) -> bool:
    """Whether the daemon of a store, if there is one, is stopped."""
    try:
        with open(os.path.join(store, "daemon.pid"), encoding="ascii") as file:
            return is_stopped(int(file.read()))
    except (OSError, ValueError):
        return False


def find_live(directory: str) -> tuple[str, str] | None:
    """(mountpoint, store) of the innermost live mount that holds a directory.

    Nothing below a mount is looked at whose daemon is stopped: that would wait for it.
    """
    live = mounts()
    best = _innermost(os.path.normpath(directory), live)
    if best is not None and daemon_is_stopped(best[1]):
        return best
    return _innermost(os.path.realpath(directory), live)


def _innermost(path: str, live: list[tuple[str, str]]) -> tuple[str, str] | None:
    best: tuple[str, str] | None = None
    for mountpoint, store in live:
        if is_below(path, mountpoint) and (best is None or len(mountpoint) >= len(best[0])):
            best = (mountpoint, store)
    return best


def find(directory: str) -> Place | None:
    """The workspace that holds `directory`, the innermost one; None when there is none.

    Both the mountpoint and the base directory of a workspace count as inside it.
    """
    if live := find_live(directory):
        mountpoint, store = live
        return Place(base_of(store) or mountpoint, mountpoint, store, mounted=True)
    path = os.path.realpath(directory)
    mountpoints = {store: mountpoint for mountpoint, store in mounts()}
    best: Place | None = None
    depth = 0
    for row in registry():
        base, store = row["base"], row["store"]
        mounted = store in mountpoints
        mountpoint = mountpoints.get(store, row["mountpoint"])
        for top in (mountpoint, base):
            if is_below(path, top) and len(top) > depth:
                depth = len(top)
                best = Place(base, mountpoint, store, mounted=mounted)
    return best
