"""`cowfs hooks`: what has to change in the configuration of an agent, and changing it.

A file is planned first (`plan`): its text now and as it would be. Writing replaces it atomically,
and remembers what was there: as long as nobody changes the file, taking the hooks out again brings
that back byte for byte. After that they are taken out one by one.

Threading: for the one thread of a command.
"""

from __future__ import annotations

import base64
import contextlib
import difflib
import hashlib
import json
import os
import stat
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from cowfs import agents
from cowfs.agents.settings import Default, Entry, Settings, Where
from cowfs.client import places
from cowfs.errors import AgentSettingsError, UsageError
from cowfs.hooks.editing import Document

_EMPTY = "{}\n"
_LARGEST = 16 << 20


@dataclass(frozen=True, slots=True)
class Plan:
    """One file. path: as the agent knows it; target: the file itself, symbolic links followed.
    before, after: what is in it now and would be, None for no file. ours: how many hooks of cowfs
    it has now, of any version; hooks: how many as they should be; wanted: how many those are.
    notes: what the user should know."""

    agent: str
    path: str
    target: str
    before: bytes | None
    after: bytes | None
    ours: int
    hooks: int
    wanted: int
    notes: tuple[str, ...] = ()

    @property
    def changes(self) -> bool:
        return self.before != self.after

    def diff(self) -> str:
        """A unified diff of it."""
        old, new = _lines(self.before), _lines(self.after)
        name = self.path if self.before is not None else os.devnull
        other = self.path if self.after is not None else os.devnull
        return "".join(
            line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"
            for line in difflib.unified_diff(old, new, name, other)
        )


def _lines(data: bytes | None) -> list[str]:
    return (data or b"").decode("utf-8", "backslashreplace").splitlines(keepends=True)


def plan(agent: str, where: Where, *, remove: bool = False) -> list[Plan]:
    """What installing, or removing, would do. Raises UsageError for an agent that has no settings
    that cowfs knows, AgentSettingsError for a file that cannot be changed."""
    module = agents.settings_of(agent)
    if module is None:
        known = ", ".join(name for name in agents.NAMES if agents.settings_of(name) is not None)
        raise UsageError(
            detail=f"cowfs cannot install hooks into {agent!r}; it can for {known}",
            command="hooks",
        )
    found: list[Settings] = module.settings(where)
    return [_plan(agent, settings, module, remove=remove) for settings in found]


def _plan(agent: str, settings: Settings, module: ModuleType, *, remove: bool) -> Plan:
    target = os.path.realpath(settings.path)
    before = _read(agent, settings.path, target)
    if settings.text is not None:
        after, numbers = _whole(agent, settings, module, before, remove=remove)
    else:
        after, numbers = _edited(agent, settings, module, before, remove=remove)
    if remove and (old := _remembered(target, before)) is not None:
        after = old.data
    return Plan(agent, settings.path, target, before, after, *numbers, settings.notes)


def _read(agent: str, path: str, target: str) -> bytes | None:
    """What is in a file, None if there is none. Raises AgentSettingsError."""
    try:
        fd = os.open(target, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise AgentSettingsError(agent=agent, path=path, detail=str(error.strerror)) from None
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise AgentSettingsError(agent=agent, path=path, detail="it is no regular file")
    with open(fd, "rb") as file:
        data = file.read(_LARGEST + 1)
    if len(data) > _LARGEST:
        raise AgentSettingsError(agent=agent, path=path, detail="it is too large")
    return data


def _whole(
    agent: str, settings: Settings, module: ModuleType, before: bytes | None, *, remove: bool
) -> tuple[bytes | None, tuple[int, int, int]]:
    """(after, (`ours`, `hooks`, `wanted` of `Plan`)) of a file that is cowfs' alone. One of another
    version begins with the same line."""
    wanted = (settings.text or "").encode()
    if before is None:
        return (None if remove else wanted), (0, 0, 1)
    first = wanted.partition(b"\n")[0]
    if before.partition(b"\n")[0] != first and not module.is_ours(
        before.decode("utf-8", "replace")
    ):
        if remove:
            return before, (0, 0, 1)
        raise AgentSettingsError(agent=agent, path=settings.path, detail="it is not cowfs' own")
    return (None if remove else wanted), (1, int(before == wanted), 1)


def _edited(
    agent: str, settings: Settings, module: ModuleType, before: bytes | None, *, remove: bool
) -> tuple[bytes | None, tuple[int, int, int]]:
    """The same of a JSON document."""
    try:
        text = before.decode() if before is not None else _EMPTY
        document = Document(text, comments=settings.comments)
        numbers = _count(document, settings, module)
        _take_out(document, settings, module, keep=() if remove else settings.entries)
        if remove:
            _take_out_defaults(document, settings.defaults)
        else:
            _put_in(document, settings)
    except UnicodeDecodeError:
        raise AgentSettingsError(
            agent=agent, path=settings.path, detail="it is not UTF-8"
        ) from None
    except ValueError as error:
        raise AgentSettingsError(agent=agent, path=settings.path, detail=str(error)) from None
    if before is None and document.text == _EMPTY:
        return None, numbers
    return document.text.encode(), numbers


def _lists(document: Document, settings: Settings) -> list[tuple[str, ...]]:
    """The lists in which hooks may be: those of the entries, and all beside them."""
    found = {entry.at[:-1] for entry in settings.entries}
    return [
        (*above, name)
        for above in sorted(found)
        for name, value in (document.get(above) or {}).items()
        if isinstance(value, list)
    ]


def _count(document: Document, settings: Settings, module: ModuleType) -> tuple[int, int, int]:
    """`ours`, `hooks` and `wanted` of `Plan`."""
    ours = 0
    for at in _lists(document, settings):
        for element in document.get(at):
            inner = element.get("hooks") if isinstance(element, dict) else None
            inner = inner if isinstance(inner, list) else []
            ours += module.is_ours(element) or any(map(module.is_ours, inner))
    there = sum(
        isinstance(found := document.get(entry.at), list) and entry.value in found
        for entry in settings.entries
    )
    return ours, there, len(settings.entries)


def _take_out(
    document: Document, settings: Settings, module: ModuleType, keep: tuple[Entry, ...]
) -> None:
    """Remove what is cowfs', but for the entries that are as they should be. Lists and objects that
    are empty then go, too."""
    for at in _lists(document, settings):
        wanted = [entry.value for entry in keep if entry.at == at]
        touched = False
        number = 0
        while number < len(elements := document.get(at)):
            element = elements[number]
            if element in wanted:
                wanted.remove(element)
            elif module.is_ours(element):
                document.remove(at, number)
                touched = True
                continue
            else:
                _take_out_inner(document, at, number, element, module)
            number += 1
        while touched and at and not document.get(at):
            document.remove(at)
            at = at[:-1]


def _take_out_inner(
    document: Document, at: tuple[str, ...], number: int, element: Any, module: ModuleType
) -> None:
    """A group of handlers, of which some are cowfs' and others somebody put beside them."""
    handlers = element.get("hooks") if isinstance(element, dict) else None
    if not isinstance(handlers, list) or not any(map(module.is_ours, handlers)):
        return
    left = [handler for handler in handlers if not module.is_ours(handler)]
    document.replace(at, number, {**element, "hooks": left})


def _take_out_defaults(document: Document, defaults: tuple[Default, ...]) -> None:
    for default in defaults:
        if default.ours and _like(document.get(default.at), default.value):
            document.remove(default.at)


def _like(value: Any, ours: Any) -> bool:
    """Whether a value is the one that was put in, by this or another installation of cowfs."""
    if value == ours:
        return value is not None
    if not isinstance(value, dict) or not isinstance(ours, dict):
        return False
    words = str(value.get("command")).split()
    return words[-2:-1] != [] and words[-2].endswith("cowfs") and words[-1] == "statusline"


def _put_in(document: Document, settings: Settings) -> None:
    for default in settings.defaults:
        if document.get(default.at) is None:
            document.set(default.at, default.value)
    for entry in settings.entries:
        found = document.get(entry.at)
        if not isinstance(found, list) or entry.value not in found:
            document.append(entry.at, entry.value)


# -- writing --------------------------------------------------------------------------------------


def carry_out(planned: Plan, *, remove: bool) -> None:
    """Make a file what was planned. Raises AgentSettingsError: it is as it was then."""
    try:
        made = _replace(planned)
    except OSError as error:
        detail = f"{error.strerror or error}"
        raise AgentSettingsError(agent=planned.agent, path=planned.path, detail=detail) from None
    with contextlib.suppress(OSError):
        _remember(planned, made, remove=remove)


def _replace(planned: Plan) -> list[str]:
    """Write the file, or remove it; returns the directories that were made for it. Raises OSError,
    AgentSettingsError."""
    if _read(planned.agent, planned.path, planned.target) != planned.before:
        detail = "somebody else has changed it just now"
        raise AgentSettingsError(agent=planned.agent, path=planned.path, detail=detail)
    if planned.after is None:
        old = _load(planned.target)
        os.unlink(planned.target)
        for directory in reversed(old.made if old is not None else []):
            with contextlib.suppress(OSError):
                os.rmdir(directory)
        return []
    made = _make_directories(os.path.dirname(planned.target))
    fresh = f"{planned.target}.cowfs-{os.getpid()}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    fd = os.open(fresh, flags, 0o666 if planned.before is None else 0o600)
    try:
        with open(fd, "wb") as file:
            file.write(planned.after)
            file.flush()
            _as_before(fd, planned.target)
            os.fsync(fd)
        os.replace(fresh, planned.target)
    except BaseException:
        os.unlink(fresh)
        raise
    return made


def _make_directories(path: str) -> list[str]:
    made = []
    above = path
    while not os.path.isdir(above):
        made.append(above)
        above = os.path.dirname(above)
    os.makedirs(path, exist_ok=True)
    return made[::-1]


def _as_before(fd: int, target: str) -> None:
    """Owner and mode of the file that is replaced. A new one is the user's own."""
    try:
        old = os.stat(target)
    except FileNotFoundError:
        return
    own = os.fstat(fd)
    if (old.st_uid, old.st_gid) != (own.st_uid, own.st_gid):
        with contextlib.suppress(PermissionError):
            os.fchown(fd, old.st_uid, old.st_gid)
    os.fchmod(fd, stat.S_IMODE(old.st_mode))


# -- what was there before ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Old:
    """What a file was before the first hook came into it. made: directories made for it."""

    data: bytes | None
    after: str
    made: list[str]


def _memory(target: str) -> str:
    name = hashlib.sha256(os.fsencode(target)).hexdigest()[:24]
    return os.path.join(places.data_directory(), "hooks", f"{name}.json")


def _digest(data: bytes | None) -> str:
    return hashlib.sha256(data or b"").hexdigest()


def _load(target: str) -> _Old | None:
    try:
        with open(_memory(target), encoding="utf-8") as file:
            row = json.load(file)
        before = row["before"]
        data = None if before is None else base64.b64decode(before, validate=True)
        return _Old(data, str(row["after"]), [str(item) for item in row["made"]])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _remembered(target: str, now: bytes | None) -> _Old | None:
    """What was there before, if nobody else has changed the file since."""
    old = _load(target)
    return old if old is not None and now is not None and old.after == _digest(now) else None


def _remember(planned: Plan, made: list[str], *, remove: bool) -> None:
    path = _memory(planned.target)
    if remove:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        return
    old = _remembered(planned.target, planned.before)
    before = old.data if old is not None else planned.before
    if old is None and planned.ours:
        before = None  # it had hooks already: what it was without them nobody knows
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        return
    row = {
        "path": planned.target,
        "before": None if before is None else base64.b64encode(before).decode(),
        "after": _digest(planned.after),
        "made": (old.made if old is not None else []) or made,
    }
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    fresh = f"{path}.{os.getpid()}"
    fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with open(fd, "w", encoding="utf-8") as file:
        json.dump(row, file)
    os.replace(fresh, path)
