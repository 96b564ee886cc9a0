"""Likely secrets in command lines and other text, which are not stored (docs/security.md).

Threading: pure functions.
"""

from __future__ import annotations

import re

HIDDEN = b"***"
_WORD = (
    rb"(?:pass(?:word|wd|phrase)?|pwd|secret|token|api[-_]?key|access[-_]?key|private[-_]?key|"
    rb"account[-_]?key|auth(?:orization|(?!or))|credentials?|cookie|bearer|signature)"
)
# Bounded: what programs are called with must not make this slow.
_REST = rb"[\w.-]{0,64}"
_NAME = _REST + _WORD + _REST
_VALUE = rb"(?:\"[^\"]*\"|'[^']*'|[^\s;&|]+)"
_ASSIGNED = re.compile(
    rb"(?i)((?:" + _WORD + _REST + rb"|[?&]sig)[\"']?\s*[=:]\s*)(?:(?:bearer|basic)\s+)?" + _VALUE
)
_OPTION = re.compile(rb"(?i)--?" + _NAME + rb"\Z")
_FOLLOWED = re.compile(rb"(?i)(--" + _NAME + rb"\s+|\b(?:bearer|basic)\s+)" + _VALUE)
_URL = re.compile(rb"(?i)([a-z][a-z0-9+.-]{0,20}://)[^/@\s]+@")
_FORMS = (
    rb"gh[pousr]_\w{16,}|github_pat_\w{16,}",  # GitHub
    rb"gl(?:pat|dt|rt|cbt|ptt|ft|imt|agent|oas|soat)-[\w-]{16,}",  # GitLab
    rb"sk-[\w-]{16,}",  # OpenAI, Anthropic and others
    rb"(?:sk|rk|pk)_(?:live|test)_\w{16,}|whsec_[\w+/=]{16,}",  # Stripe
    rb"xox[a-z]-[\w-]{10,}|xapp-[\w-]{10,}",  # Slack
    rb"(?:AKIA|ASIA)[0-9A-Z]{16}",  # AWS
    rb"AIza[\w-]{30,}|ya29\.[\w-]{20,}|GOCSPX-[\w-]{20,}",  # Google
    rb"npm_\w{30,}|pypi-[\w-]{30,}|rubygems_[0-9a-f]{32,}|dckr_pat_[\w-]{20,}",  # registries
    rb"hf_\w{20,}|gsk_\w{30,}|r8_\w{30,}|xai-\w{30,}|pplx-\w{30,}|nvapi-[\w-]{30,}",  # models
    rb"dop_v1_[0-9a-f]{32,}|SG\.[\w-]{16,}\.[\w-]{16,}|key-[0-9a-f]{32}|SK[0-9a-f]{32}",
    rb"shp(?:at|ca|pa|ss)_[0-9a-fA-F]{32}|sq0(?:atp|csp)-[\w-]{22,}",  # Shopify, Square
    rb"lin_api_\w{32,}|ntn_\w{32,}|secret_\w{32,}|figd_[\w-]{20,}|glsa_\w{30,}|ATATT3[\w=-]{20,}",
    rb"hv[sbr]\.[\w-]{20,}|tskey-[\w-]{16,}|dapi[0-9a-f]{32}|sbp_[0-9a-f]{40}|sntrys_[\w=+/-]{20,}",
    rb"eyJ[\w-]{8,300}\.[\w-]{8,}\.[\w-]*",  # JSON web tokens
    rb"AGE-SECRET-KEY-1[0-9A-Z]{20,}",
    rb"-----BEGIN [A-Z0-9 ]*PRIVATE KEY-----(?:[^-]*-----END [A-Z0-9 ]*PRIVATE KEY-----|[^-]*)",
    rb"https://hooks\.slack\.com/[\w/-]{20,}",
    rb"https://(?:[a-z]+\.)?discord(?:app)?\.com/api/webhooks/[\w/-]{20,}",
)
_KNOWN = re.compile(rb"(?<![A-Za-z0-9])(?:" + b"|".join(_FORMS) + rb")")
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
        out.append(_concealed(word))
    return out


def concealed(text: str) -> str:
    """Any text, with `***` in the same places."""
    return _concealed(_bytes(text)).decode("utf-8", "surrogatepass")


def has_key(text: str) -> bool:
    """Whether there is a key of a known form in a text, or a URL with a user."""
    raw = _bytes(text)
    return _KNOWN.search(raw) is not None or _URL.search(raw) is not None


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _concealed(text: bytes) -> bytes:
    text = _URL.sub(rb"\1" + HIDDEN + b"@", text)
    text = _ASSIGNED.sub(rb"\1" + HIDDEN, text)
    text = _FOLLOWED.sub(rb"\1" + HIDDEN, text)
    return _KNOWN.sub(HIDDEN, text)
