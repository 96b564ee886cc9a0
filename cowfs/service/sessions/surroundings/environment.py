"""Which variables of an environment are kept with a checkpoint, and which are left out.

Left out is what has a telling name (token, key, password ...), what looks like a secret whatever
its name is (keys of known forms, URLs with users, long random text), and what an agent sets for its
own children only. A variable is left out as a whole: half of a value is of no use to anybody.
docs/security.md says the same to users.

Threading: pure functions.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import pairwise
from typing import NamedTuple

from cowfs.volume.audit_redaction import concealed, has_key

MOST_VARIABLES = 400
MOST_BYTES = 128 << 10
"""Of all names and values together, those of what was left out included."""
LONGEST_VALUE = 8192
LONGEST_NAME = 200

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
ALWAYS = frozenset(
    """
    PATH HOME USER LOGNAME SHELL PWD OLDPWD SHLVL HOSTNAME TZ LANG LANGUAGE TMPDIR
    TERM COLORTERM TERM_PROGRAM DISPLAY WAYLAND_DISPLAY LS_COLORS EDITOR VISUAL PAGER
    XDG_CONFIG_HOME XDG_DATA_HOME XDG_CACHE_HOME XDG_STATE_HOME XDG_RUNTIME_DIR XDG_DATA_DIRS
    XDG_CONFIG_DIRS XDG_CURRENT_DESKTOP XDG_SESSION_CLASS XDG_SESSION_DESKTOP XDG_SESSION_ID
    XDG_SESSION_TYPE DESKTOP_SESSION
    VIRTUAL_ENV CONDA_PREFIX CONDA_DEFAULT_ENV PYENV_ROOT PYENV_VERSION PYTHONPATH PYTHONHOME
    PYTHONHASHSEED NVM_DIR NVM_BIN NODE_ENV NODE_PATH NODE_OPTIONS GOPATH GOROOT GOBIN GOFLAGS
    GOTOOLCHAIN CARGO_HOME RUSTUP_HOME RUSTUP_TOOLCHAIN RUSTFLAGS JAVA_HOME JDK_HOME MAVEN_OPTS
    GRADLE_USER_HOME ANDROID_HOME ANDROID_SDK_ROOT GEM_HOME GEM_PATH RBENV_VERSION
    LD_LIBRARY_PATH LIBRARY_PATH CPATH PKG_CONFIG_PATH MANPATH INFOPATH CLASSPATH
    CC CXX CFLAGS CXXFLAGS CPPFLAGS LDFLAGS MAKEFLAGS CI DEBIAN_FRONTEND
    GITHUB_SHA GITHUB_REF CI_COMMIT_SHA GIT_COMMIT
    CLAUDE_CONFIG_DIR CLAUDE_CODE_MAX_OUTPUT_TOKENS CLAUDE_CODE_SUBAGENT_MODEL MAX_THINKING_TOKENS
    ANTHROPIC_MODEL ANTHROPIC_BASE_URL CODEX_HOME
    """.split()  # noqa: SIM905
)
"""Kept whatever they are called and however random they look, but for keys of known forms."""
_ALWAYS_PREFIXES = ("LC_",)

_TELLING = re.compile(
    # Anywhere in a name:
    r"PASSW|PASSPHRASE|SECRET|TOKEN|CREDENTIAL|COOKIE|API_?KEY|PRIVKEY|WEBHOOK|OAUTH|SIGNATURE"
    r"|MNEMONIC|BEARER|HTPASS|JWT"
    # A word of it:
    r"|(?<![A-Z])(?:KEYS?|AUTH|AUTHORIZATION|PASS|PWD|PW|CREDS?|SESSIONS?|DSN|PAT|PINS?|T?OTP|SALT"
    r"|NONCE|HMAC|PSK|SEED|SOCK|SOCKET|LICEN[CS]E|ENCRYPTION|CIPHER|CSRF|XSRF|SID|CONN_?STR"
    r"|CONNECTION_STRING)(?![A-Z])"
    # Its end:
    r"|(?:KEYS?|AUTH|PASS)[0-9]*\Z"
)
_OF_AGENTS = re.compile(
    r"CLAUDECODE|CLAUDE_(?:PID|PROJECT_DIR|ENV_FILE|EFFORT|PLUGIN_\w+|SESSION\w*)"
    r"|CLAUDE_CODE_(?!DISABLE_|ENABLE_|USE_|MAX_|SKIP_)\w+"
    r"|GEMINI_(?:SESSION_ID|PROJECT_DIR|CWD|CLI)|CODEX_(?:SANDBOX\w*|THREAD_ID|SESSION_ID)"
    r"|OPENCODE|OPENCODE_(?:PID|SESSION\w*)|CURSOR_(?:AGENT|TRACE_ID)"
)
"""What agents set for what they start. A program that is resumed with it would take itself for a
part of another session."""
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")

_SHORTEST_RANDOM = 20
_RUN = re.compile(r"[A-Za-z0-9+/=_-]{20,}")
_RUN_OF_PATH = re.compile(r"[A-Za-z0-9+=_-]{20,}")
_UNSPEAKABLE = re.compile(r"(?i)[bcdfghjklmnpqrstvwxz]{7}")
_PATH = re.compile(r"[/~.]|.*:/")


class Kept(NamedTuple):
    """variables: (name, value), sorted. hidden: names of those that were left out, sorted.
    missing: what else was left out, in words."""

    variables: tuple[tuple[str, str], ...] = ()
    hidden: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()


def without_secrets(environment: Mapping[str, str]) -> Kept:
    """What is kept of an environment."""
    variables: list[tuple[str, str]] = []
    hidden: list[str] = []
    odd = more = size = 0
    for name in sorted(environment):
        value = environment[name]
        if not _NAME.fullmatch(name) or len(name) > LONGEST_NAME or has_key(name):
            odd += 1  # a function of a shell; the name itself may say too much
            continue
        hide = is_secret(name, value)
        size += len(name) + (0 if hide else len(value))
        if size > MOST_BYTES or len(variables) + len(hidden) >= MOST_VARIABLES:
            more += 1
        elif hide:
            hidden.append(name)
        else:
            variables.append((name, value))
    missing = []
    if odd:
        missing.append(f"{odd} variables whose names are none of a program's own")
    if more:
        missing.append(f"{more} more variables")
    return Kept(tuple(variables), tuple(hidden), tuple(missing))


def is_secret(name: str, value: str) -> bool:
    """Whether a variable is left out."""
    if len(value) > LONGEST_VALUE or not _is_text(value):
        return True
    if name in ALWAYS or name.startswith(_ALWAYS_PREFIXES):
        return has_key(value)
    upper = _CAMEL.sub("_", name).upper()
    if _TELLING.search(upper) or _OF_AGENTS.fullmatch(name):
        return True
    return concealed(value) != value or looks_random(value)


def of_agents(name: str) -> bool:
    """Whether a variable is one that agents set for what they start."""
    return _OF_AGENTS.fullmatch(name) is not None


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def looks_random(value: str) -> bool:
    """Whether there is a long piece in a text that nobody would have thought of."""
    runs = _RUN_OF_PATH if _PATH.match(value) else _RUN
    return any(_is_random(run) for run in runs.findall(value))


def _is_random(run: str) -> bool:
    """By how often letters, capitals and digits follow each other: in random text at 0.4 to 0.6 of
    all places, in words with numbers and versions at less than 0.15, in CamelCase at 0.3. And by
    letters that nobody could say."""
    kinds = ["0" if c.isdigit() else "A" if c.isupper() else "a" for c in run if c.isalnum()]
    if len(kinds) < _SHORTEST_RANDOM:
        return False
    changes = sum(one != two for one, two in pairwise(kinds))
    with_digits = "0" in kinds
    if with_digits and not changes:
        return True
    often = len(kinds) * (0.17 if with_digits else 0.42)
    return changes >= often or _UNSPEAKABLE.search(run) is not None
