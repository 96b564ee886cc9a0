"""Which settings a workspace has, what each may be, and what it is if nobody sets it.

Threading: none of its own; nothing here changes.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from cowfs.errors import ConfigError

_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|min|h|d|w)?")
_SECONDS = {"ms": 0.001, None: 1, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400, "w": 604800}
_LONGEST = 10 * 365 * 86400.0
_MOST = 1_000_000_000
OFF = "off"


# -- kinds of values ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Kind:
    """What a setting's value may be. allowed: in words. take: a value of TOML to one of `Config`;
    raises ValueError. show: the other way, as it is written into the file. several: it is a list,
    each word of a command line one of it."""

    allowed: str
    take: Callable[[object], Any]
    show: Callable[[Any], Any]
    several: bool = False


def _take_duration(value: object) -> float:
    if isinstance(value, str):
        found = _DURATION.fullmatch(value.strip().lower())
        if value == OFF:
            return 0.0
        if found is None:
            raise ValueError
        seconds = float(found[1]) * _SECONDS[found[2]]
    elif isinstance(value, int | float) and not isinstance(value, bool):
        seconds = float(value)
    else:
        raise ValueError
    if not (math.isfinite(seconds) and 0 <= seconds <= _LONGEST):
        raise ValueError
    return seconds


def _show_duration(seconds: float) -> str:
    if not seconds:
        return OFF
    for unit in ("w", "d", "h", "m", "s"):
        count = seconds / _SECONDS[unit]
        if count >= 1 and count == int(count):
            return f"{int(count)}{unit}"
    return f"{seconds:.3f}".rstrip("0").rstrip(".") + "s"


def _take_number(value: object) -> int:
    if value == OFF:
        return 0
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 20:
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _MOST:
        raise ValueError
    return value


def _take_paths(value: object) -> tuple[str, ...]:
    if not isinstance(value, list | tuple):
        raise ValueError
    paths = []
    for item in value:
        if not isinstance(item, str):
            raise ValueError
        path = item.rstrip("/").removeprefix("./")
        if not path or "\0" in path or any(n in ("", ".", "..") for n in path.split("/")):
            raise ValueError
        paths.append(path)
    return tuple(dict.fromkeys(paths))


def _take_switch(value: object) -> bool:
    if isinstance(value, bool):
        return value
    if value not in ("on", OFF):
        raise ValueError
    return value == "on"


def _show_switch(value: bool) -> str:
    return "on" if value else OFF


MOMENTS = ("prompt", "tool", "turn")
"""Of an agent: before a prompt; before a tool call that changes files; at the end of a turn, and
before its conversation is made shorter."""
SUBAGENT_MOMENTS = ("tool", "agent")
"""Of a sub-agent: before a tool call; before it begins and when it has ended."""


def _moments(known: tuple[str, ...]) -> Kind:
    def take(value: object) -> tuple[str, ...]:
        if not isinstance(value, list | tuple) or not all(item in known for item in value):
            raise ValueError
        return tuple(moment for moment in known if moment in value)

    return Kind(f"some of {', '.join(known)}, or none", take, list[str], several=True)


OWN_MOMENTS, OTHERS_MOMENTS = _moments(MOMENTS), _moments(SUBAGENT_MOMENTS)


def _take_types(value: object) -> tuple[str, ...]:
    if not isinstance(value, list | tuple):
        raise ValueError
    found = {}
    for item in value:
        kind, equals, words = str(item).partition("=")
        if not kind or not equals or not kind.isprintable():
            raise ValueError
        found[kind] = OTHERS_MOMENTS.take([] if words in ("", OFF) else words.split("+"))
    return tuple(f"{kind}={'+'.join(moments) or OFF}" for kind, moments in found.items())


def _choice(*names: str) -> Kind:
    def take(value: object) -> str:
        if value not in names:
            raise ValueError
        return str(value)

    return Kind(", ".join(names), take, str)


DURATION = Kind('a duration such as "30s", "10m" or "2h", or "off"', _take_duration, _show_duration)
SWITCH = Kind('"on" or "off"', _take_switch, _show_switch)
NUMBER = Kind('a whole number, or "off" (0)', _take_number, int)
PATHS = Kind(
    'paths relative to the top, such as ["target/", "node_modules/"]',
    _take_paths,
    list[str],
    several=True,
)
TYPES = Kind(
    'types of sub-agents and their moments, such as ["Explore=off", "builder=agent+tool"]',
    _take_types,
    list[str],
    several=True,
)


# -- the settings ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting: its key ("section.name"), what it may be, its default, and what it does."""

    key: str
    kind: Kind
    default: Any
    about: str


PROFILES: dict[str, dict[str, dict[str, Any]]] = {
    "checkpoints": {
        "exploratory": {},
        "batch": {
            "settle": 0.0,
            "interval": 0.0,
            "every_files": 100,
            "sessions.checkpoints": ("prompt", "turn"),
            "sessions.subagents": (),
        },
        "parallel": {"sessions.checkpoints": ("prompt", "turn")},
        "manual": {
            "settle": 0.0,
            "interval": 0.0,
            "before_deletion": 0,
            "sessions.checkpoints": (),
            "sessions.subagents": (),
        },
    },
    "retention": {
        "development": {},
        "production": {"keep_days": 90},
    },
}
"""By section: name of a profile to the settings that it has otherwise than the default; those of
another section by their whole key."""

SETTINGS = {
    setting.key: setting
    for setting in (
        Setting(
            "checkpoints.profile",
            _choice(*PROFILES["checkpoints"]),
            "exploratory",
            "exploratory: after every burst of changes, and at all that agents do; batch: every so "
            "many files; parallel: each sub-agent by itself; manual: none",
        ),
        Setting("checkpoints.settle", DURATION, 3.0, "so long after the last change of a burst"),
        Setting("checkpoints.burst", NUMBER, 1, "if it was of at least so many changes"),
        Setting("checkpoints.spacing", DURATION, 15.0, "and so long after the checkpoint before"),
        Setting("checkpoints.interval", DURATION, 600.0, "after so long, if the changes go on"),
        Setting("checkpoints.every_files", NUMBER, 0, "when so many files are changed"),
        Setting(
            "checkpoints.before_deletion",
            NUMBER,
            50,
            "of the state before so many files are deleted",
        ),
        Setting(
            "retention.profile",
            _choice(*PROFILES["retention"]),
            "development",
            "development: 30 days; production: 90 days",
        ),
        Setting("retention.keep_last", NUMBER, 10, "the newest so many, and so many prompts"),
        Setting("retention.keep_hourly", NUMBER, 0, "the last one of each of so many hours"),
        Setting("retention.keep_daily", NUMBER, 0, "the last one of each of so many days"),
        Setting("retention.keep_weekly", NUMBER, 0, "the last one of each of so many weeks"),
        Setting("retention.keep_days", NUMBER, 30, "all of so many days"),
        Setting("retention.keep_rescue", NUMBER, 7, "rescue checkpoints of so many days"),
        Setting(
            "volatile.paths",
            PATHS,
            (),
            "what can be made again: a restore leaves it alone unless asked",
        ),
        Setting(
            "volatile.keep_days",
            NUMBER,
            7,
            "its contents in checkpoints of so many days; off: as long as these",
        ),
        Setting(
            "sessions.checkpoints",
            OWN_MOMENTS,
            MOMENTS,
            "at which moments of an agent's work",
        ),
        Setting(
            "sessions.subagents",
            OTHERS_MOMENTS,
            SUBAGENT_MOMENTS,
            "at which of its sub-agents'",
        ),
        Setting("sessions.types", TYPES, (), "at which of those of a type"),
        Setting("sessions.report", SWITCH, True, "whether it is told what its commands changed"),
        Setting("mcp.restore", SWITCH, False, "`cowfs mcp` lets agents restore files"),
    )
}
"""All settings by their keys, in the order in which they are listed."""

SECTIONS = list(dict.fromkeys(key.partition(".")[0] for key in SETTINGS))


def setting(key: str) -> Setting:
    """The setting with a key. Raises ConfigError, with the nearest one."""
    found = SETTINGS.get(key)
    if found is None:
        raise ConfigError(detail=f"there is no setting {key!r}{nearest(key, SETTINGS)}")
    return found


def nearest(word: str, words: Iterable[str]) -> str:
    """The end of a message about a word that is none of those."""
    near = difflib.get_close_matches(word, words, 1)
    return f"; {near[0]!r} perhaps?" if near else f"; there are {', '.join(words)}"


def take(found: Setting, value: object) -> Any:
    """A value of the file or the command line. Raises ConfigError."""
    try:
        return found.kind.take(value)
    except (ValueError, OverflowError):
        raise ConfigError(
            detail=f"{found.key} cannot be {value!r}: it is {found.kind.allowed}"
        ) from None
