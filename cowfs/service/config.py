"""A workspace's configuration: `config.toml` in the store's directory.

Not in the project, where whoever works there could change it. It is optional, made by people or by
`cowfs config`, and read again by the daemon when it changes. What is wrong in it never keeps
anything from working: the setting has its default then, and `Config.problems` says so.

A setting comes, in this order, from the file; from the profile of its section; from the default.

Threading: stateless functions; a `Config` is immutable. Writers of all processes are serialised by
a lock on `config.toml.lock`.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cowfs.errors import ConfigError
from cowfs.service.settings import (
    OFF,
    PROFILES,
    SECTIONS,
    SETTINGS,
    Setting,
    nearest,
    setting,
    take,
)
from cowfs.store.env import sync_directory

FILE = "config.toml"
_LARGEST = 1 << 20


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """When the daemon makes checkpoints by itself. Durations are seconds; 0 is never.

    settle: so long after the last change of a burst. burst: of at least so many changes.
    spacing: not sooner after the last checkpoint. interval: at the latest so long after a change,
    however many others follow. every_files: when so many files are changed. before_deletion: when
    so many are being deleted, of the state before.
    """

    profile: str
    settle: float
    burst: int
    spacing: float
    interval: float
    every_files: int
    before_deletion: int


@dataclass(frozen=True, slots=True)
class Retention:
    """Which checkpoints are kept: those that any of the rules keeps; 0 is no such rule.

    keep_last: the newest so many, and the newest so many prompts. keep_hourly, keep_daily,
    keep_weekly: the last one of each of so many hours, days, weeks. keep_days: all of so many days.
    keep_rescue: rescue checkpoints of so many days. What has a label or is pinned is no matter of
    these.

    Nothing may be removed by them while `Config.problems` has something: it could be a rule.
    """

    profile: str
    keep_last: int
    keep_hourly: int
    keep_daily: int
    keep_weekly: int
    keep_days: int
    keep_rescue: int


@dataclass(frozen=True, slots=True)
class Volatile:
    """paths: relative to the top, without a slash at the end. A path of several names is that one
    place; a single name means every directory or file of that name. keep_days: of so many days
    checkpoints keep what they contain; 0 is as long as the checkpoint itself."""

    paths: tuple[str, ...]
    keep_days: int


@dataclass(frozen=True, slots=True)
class Mcp:
    """restore: whether `cowfs mcp` offers agents a tool that restores files."""

    restore: bool


@dataclass(frozen=True, slots=True)
class Sessions:
    """At what moments in the work of agents checkpoints are made.

    checkpoints: of an agent itself, of `MOMENTS`. subagents: of its sub-agents, of
    `SUBAGENT_MOMENTS`. types: of sub-agents of a type: "TYPE=MOMENT+MOMENT" or "TYPE=off".
    report: whether an agent is told what its commands changed.
    """

    checkpoints: tuple[str, ...]
    subagents: tuple[str, ...]
    types: tuple[str, ...]
    report: bool

    def wants(self, moment: str, subagent: str, kind: str) -> bool:
        """Whether there shall be a checkpoint. subagent: whose moment it is, "" for the agent
        itself; kind: that sub-agent's type."""
        if not subagent:
            return moment in self.checkpoints
        own = dict(item.split("=", 1) for item in self.types).get(kind)
        return moment in (self.subagents if own is None else own.split("+"))


@dataclass(frozen=True, slots=True)
class Config:
    """All settings. sources: key to where its value comes from: "file", "profile", "default".
    problems: what is wrong in the file."""

    checkpoints: Checkpoints
    retention: Retention
    volatile: Volatile
    sessions: Sessions
    mcp: Mcp
    sources: dict[str, str]
    problems: tuple[ConfigError, ...] = ()

    def value(self, key: str) -> Any:
        """The value of a key such as "checkpoints.settle"."""
        section, _, name = key.partition(".")
        return getattr(getattr(self, section), name)


# -- reading --------------------------------------------------------------------------------------


def read(store: Path) -> Config:
    """The configuration of a store. Never raises: see `Config.problems`."""
    problems: list[ConfigError] = []
    try:
        found = _load(store)
    except ConfigError as error:
        found = {}
        problems.append(error)
    return _settle(found, problems)


def _load(store: Path) -> dict[str, Any]:
    """What the file says, {} when there is none. Raises ConfigError."""
    path = store / FILE
    try:
        with open(path, "rb") as file:
            data = file.read(_LARGEST + 1)
        if len(data) > _LARGEST:
            raise ConfigError(detail=f"{path} is longer than {_LARGEST:,} bytes")
        return tomllib.loads(data.decode())
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise ConfigError(detail=f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(detail=f"{path} is not TOML: {error}") from None


def _flat(found: dict[str, Any], problems: list[ConfigError]) -> Iterator[tuple[Setting, object]]:
    """The settings of a file; what is none of them is a problem."""
    for section, table in found.items():
        if section not in SECTIONS:
            detail = f"there is no section [{section}]{nearest(section, SECTIONS)}"
            problems.append(ConfigError(detail=detail))
        elif not isinstance(table, dict):
            problems.append(ConfigError(detail=f"{section} must be a section: [{section}]"))
        else:
            for name, value in table.items():
                try:
                    yield setting(f"{section}.{name}"), value
                except ConfigError as error:
                    problems.append(error)


def _settle(found: dict[str, Any], problems: list[ConfigError]) -> Config:
    values: dict[str, Any] = {}
    for known, value in _flat(found, problems):
        try:
            values[known.key] = take(known, value)
        except ConfigError as error:
            problems.append(error)
    sources = dict.fromkeys(values, "file")
    for section, profiles in PROFILES.items():
        key = f"{section}.profile"
        chosen = values.get(key, SETTINGS[key].default)
        for name, value in profiles[chosen].items():
            if (other := name if "." in name else f"{section}.{name}") not in values:
                values[other] = value
                sources[other] = "profile"

    def part(section: str) -> dict[str, Any]:
        return {
            key.partition(".")[2]: values.get(key, known.default)
            for key, known in SETTINGS.items()
            if key.startswith(section + ".")
        }

    return Config(
        Checkpoints(**part("checkpoints")),
        Retention(**part("retention")),
        Volatile(**part("volatile")),
        Sessions(**part("sessions")),
        Mcp(**part("mcp")),
        {key: sources.get(key, "default") for key in SETTINGS},
        tuple(problems),
    )


# -- writing --------------------------------------------------------------------------------------


def change(store: Path, key: str, words: list[str] | None) -> Config:
    """Set a setting to what the words of a command line say, or take it out (None); returns the
    configuration as it is then. Comments and the order of the file stay.

    Raises ConfigError: nothing is written then. Raises OSError.
    """
    known = setting(key)
    value = None if words is None else known.kind.show(take(known, _spoken(known, words)))
    with _locked(store):
        if value is not None or (store / FILE).exists():
            _write(store, _edited(store, key, value))
    return read(store)


@contextlib.contextmanager
def _locked(store: Path) -> Iterator[None]:
    """One writer at a time."""
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
    fd = os.open(store / (FILE + ".lock"), flags, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def replace(store: Path, data: bytes) -> None:
    """Write a whole new file. Raises ConfigError when anything is wrong with it: nothing is written
    then. Raises OSError."""
    try:
        text = data.decode()
        found = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(detail=f"this is not TOML: {error}") from None
    for problem in _settle(found, []).problems:
        raise problem
    with _locked(store):
        _write(store, text)


def template() -> str:
    """A file that says what there is, and sets nothing."""
    lines = ["# Settings of this workspace."]
    section = ""
    for key, known in SETTINGS.items():
        above, _, name = key.partition(".")
        if above != section:
            section = above
            lines += ["", f"[{section}]"]
        value = known.kind.show(known.default)
        shown = f'"{value}"' if isinstance(value, str) else value
        lines += [f"# {known.about}", f"# {name} = {shown}"]
    return "\n".join(lines) + "\n"


def _spoken(known: Setting, words: list[str]) -> object:
    if known.kind.several:
        return [word for word in words if word not in ("", OFF)]
    return " ".join(words)


def _edited(store: Path, key: str, value: object) -> str:
    """The text of the file with one setting changed. Raises ConfigError."""
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    _load(store)  # what is not TOML is not changed
    try:
        document: Any = tomlkit.parse((store / FILE).read_bytes())
    except FileNotFoundError:
        document = tomlkit.document()
        document.add(tomlkit.comment("Settings of this workspace; `cowfs config` lists them all."))
    except (TOMLKitError, ValueError, RecursionError) as error:
        raise ConfigError(detail=f"{store / FILE} cannot be changed: {error}") from None
    section, _, name = key.partition(".")
    table = document.get(section)
    if table is None and value is not None:
        table = document[section] = tomlkit.table()
    elif table is not None and not isinstance(table, dict):
        raise ConfigError(detail=f"{section} must be a section: [{section}]")
    if table is not None and value is not None:
        table[name] = value
    elif table is not None:
        table.pop(name, None)
    return tomlkit.dumps(document)


def _write(store: Path, text: str) -> None:
    """Replace the file atomically."""
    new = store / (FILE + ".new")
    fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with open(fd, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(new, store / FILE)
    sync_directory(store)
