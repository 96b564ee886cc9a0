"""Likely secrets in command lines, which are not stored (docs/security.md).

Threading: pure functions.
"""

from __future__ import annotations

import re

HIDDEN = b"***"
_WORD = (
    rb"(?:pass(?:word|wd|phrase)?|pwd|secret|token|api[-_]?key|access[-_]?key|private[-_]?key|"
    rb"auth(?:orization)?|credentials?|cookie|bearer|signature)"
)
_NAME = rb"[\w.-]*" + _WORD + rb"[\w.-]*"
_ASSIGNED = re.compile(rb"(?i)(\b" + _NAME + rb"[\"']?\s*[=:]\s*)(?:(?:bearer|basic)\s+)?[^\s;&|]+")
_OPTION = re.compile(rb"(?i)--?" + _NAME + rb"\Z")
_FOLLOWED = re.compile(rb"(?i)(--" + _NAME + rb"\s+|\b(?:bearer|basic)\s+)[^\s;&|]+")
_URL = re.compile(rb"(?i)\b([a-z][a-z0-9+.-]*://)[^/@\s]+@")
_KNOWN = re.compile(
    rb"\b(?:gh[pousr]_\w{16,}|github_pat_\w{16,}|glpat-[\w-]{16,}|sk-[\w-]{16,}|xox[a-z]-[\w-]{10,}"
    rb"|AKIA[0-9A-Z]{16}|AIza[\w-]{30,}|npm_\w{30,}|pypi-[\w-]{30,}|hf_\w{20,}"
    rb"|eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*)"
)
_PLAIN_OPTIONS = {
    b"mysql": (b"-p",),
    b"mysqldump": (b"-p",),
    b"mariadb": (b"-p",),
    b"sshpass": (b"-p",),
    b"curl": (b"-u", b"--user", b"-b", b"--cookie"),
    b"wget": (b"--user",),
}
"""Programs with options that have a secret and no telling name."""


def redacted(words: list[bytes]) -> list[bytes]:
    """A command's arguments with `***` where something may be a secret: values of options and
    variables with such names, users in URLs, keys of known forms."""
    plain = _PLAIN_OPTIONS.get(words[0].rpartition(b"/")[2], ()) if words else ()
    out: list[bytes] = []
    hide = False
    for word in words:
        if hide and not word.startswith(b"--"):
            out.append(HIDDEN)
            hide = False
            continue
        hide = bool(out) and (word in plain or _OPTION.match(word) is not None)
        short = next((o for o in plain if len(o) == 2 and word[:2] == o and len(word) > 2), b"")
        if short and out:
            out.append(short + HIDDEN)
            continue
        word = _URL.sub(rb"\1" + HIDDEN + b"@", word)
        word = _ASSIGNED.sub(rb"\1" + HIDDEN, word)
        word = _FOLLOWED.sub(rb"\1" + HIDDEN, word)
        out.append(_KNOWN.sub(HIDDEN, word))
    return out
