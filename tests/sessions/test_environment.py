"""Which variables of an environment are kept with a checkpoint: none that may be a secret."""

from __future__ import annotations

import base64
import random
import string
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cowfs.service.sessions.surroundings.environment import (
    ALWAYS,
    LONGEST_VALUE,
    MOST_BYTES,
    MOST_VARIABLES,
    is_secret,
    looks_random,
    without_secrets,
)

BY_NAME = [
    "ANTHROPIC_API_KEY",
    "ANTHROPIC_AUTH_TOKEN",
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AZURE_CLIENT_SECRET",
    "AZURE_STORAGE_CONNECTION_STRING",
    "BW_SESSION",
    "CLAUDE_CODE_MESSAGING_SOCKET",
    "CLAUDE_CODE_MESSAGING_TOKEN",
    "CLAUDE_CODE_OAUTH_TOKEN",
    "CLOUDFLARE_API_TOKEN",
    "CODECOV_TOKEN",
    "DATADOG_APP_KEY",
    "DB_PASS",
    "DB_PASSWORD",
    "DJANGO_SECRET_KEY",
    "DOCKER_AUTH_CONFIG",
    "ENCRYPTION_KEY",
    "FLASK_SECRET_KEY",
    "GH_TOKEN",
    "GITHUB_PAT",
    "GITHUB_TOKEN",
    "GITLAB_TOKEN",
    "GOOGLE_APPLICATION_CREDENTIALS",
    "GPG_PASSPHRASE",
    "HEROKU_API_KEY",
    "HF_TOKEN",
    "JWT_SECRET",
    "LDAP_BIND_PW",
    "MAILGUN_APIKEY",
    "MYSQL_PWD",
    "NPM_TOKEN",
    "NUGET_API_KEY",
    "OPENAI_API_KEY",
    "OPENAI_KEY",
    "OP_SESSION_my",
    "PGPASSWORD",
    "PULUMI_ACCESS_TOKEN",
    "RAILS_MASTER_KEY",
    "REDIS_AUTH",
    "SENTRY_AUTH_TOKEN",
    "SENTRY_DSN",
    "SESSION_COOKIE",
    "SIGNING_KEY",
    "SLACK_WEBHOOK_URL",
    "SSH_AUTH_SOCK",
    "SSH_KEY2",
    "STRIPE_KEY",
    "TF_VAR_db_password",
    "TOTP_SEED",
    "TWINE_PASSWORD",
    "VAULT_TOKEN",
    "accessToken",
    "apiKey",
    "dbPassword",
    "npm_config__authToken",
    "privateKeyPem",
]
"""Left out, whatever their values are."""

BY_VALUE = [
    ("DATABASE_URL", "postgres://ana:hunter2@db.example.org/shop"),
    ("REDIS_URL", "redis://:hunter2@cache:6379/0"),
    ("BROKER", "amqp://guest:guest@localhost//"),
    ("REPORTS", "https://0123456789abcdef0123456789abcdef@sentry.example.org/1"),
    ("PIP_INDEX_URL", "https://__token__:x@pypi.example.org/simple"),
    ("HTTPS_PROXY", "http://ana:hunter2@proxy:3128"),
    ("DB", "host=db user=ana password=hunter2 dbname=shop"),
    ("ODBC", "Driver={x};Server=db;Uid=ana;Pwd=hunter2;"),
    ("STORAGE", "DefaultEndpointsProtocol=https;AccountName=a;AccountKey=Zm9vYmFyCg==;"),
    ("BLOB", "https://a.blob.example.net/c/b?sv=2024&sp=r&sig=abc%2Bdef%3D"),
    ("DOWNLOAD", "https://b.example.com/x?X-Amz-Credential=AK&X-Amz-Signature=fe12"),
    ("CURL_OPTIONS", "-H 'Authorization: Bearer abcdef'"),
    ("EXTRA", "--password hunter2"),
    ("NOTIFY", "https://hooks.slack.com/services/T00000000/B00000000/abcdefghijklmnopqrstuvwx"),
    (
        "DEPLOY",
        "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXk\n-----END OPENSSH PRIVATE KEY-----",
    ),
    ("A", "ghp_0123456789abcdefABCDEF0123456789abcd"),
    ("B", "github_pat_11AAAAAAA0aaaaaaaaaaaa_bbbbbbbbbbbbbbbbbbbbbbbb"),
    ("C", "glpat-0123456789abcdefghij"),
    ("D", "sk-ant-api03-abcdefghijklmnop"),
    ("E", "xoxb-0123456789-abcdef"),
    ("F", "AKIAIOSFODNN7EXAMPLE"),
    ("G", "AIzaSyA0123456789abcdefghijklmnopqrstuv"),
    ("H", "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl"),
    ("I", "sk_live_0123456789abcdefghij"),
    ("J", "hvs.CAESIJ0123456789abcdefgh"),
    ("K", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"),
    ("L", "5f4dcc3b5aa765d61d8327deb882cf99"),
    ("M", "8d3f4a52-7f3c-4a5e-9f47-0c2bb1f7a9c1"),
    ("N", "dGhpcyBpcyBub3QgYSBzZWNyZXQgYnV0IGxvb2tz"),
    ("O", "prefix:q9X2vB7nM4kL8pR3tY6wZ1cF5:suffix"),
    ("PATH", "/usr/bin:/opt/ghp_0123456789abcdefABCDEF0123456789abcd/bin"),
    ("GOPROXY", "https://ana:hunter2@goproxy.example.org"),
    ("LANG", "C\udcff"),
]
"""Left out for what they say."""

OF_AGENTS = [
    "CLAUDECODE",
    "CLAUDE_CODE_CHILD_NOTES_DIR",
    "CLAUDE_CODE_CHILD_SESSION",
    "CLAUDE_CODE_ENTRYPOINT",
    "CLAUDE_CODE_SESSION_ID",
    "CLAUDE_CODE_SSE_PORT",
    "CLAUDE_ENV_FILE",
    "CLAUDE_PID",
    "CLAUDE_PLUGIN_ROOT",
    "CLAUDE_PROJECT_DIR",
    "GEMINI_PROJECT_DIR",
    "GEMINI_SESSION_ID",
    "OPENCODE",
]

STAY = [
    ("PATH", "/home/ana/.nvm/versions/node/v22.3.0/bin:/usr/local/bin:/usr/bin:/bin"),
    ("HOME", "/home/ana"),
    ("LANG", "de_DE.UTF-8"),
    ("LC_ALL", "C.UTF-8"),
    ("TZ", "America/Argentina/ComodRivadavia"),
    ("TERM", "xterm-256color"),
    ("SHELL", "/usr/bin/zsh"),
    ("PWD", "/home/ana/shop"),
    ("VIRTUAL_ENV", "/home/ana/shop/.venv"),
    ("XDG_SESSION_TYPE", "wayland"),
    ("XDG_RUNTIME_DIR", "/run/user/1000"),
    ("GITHUB_SHA", "a94a8fe5ccb19ba61c4c0873d391e987982fbbd3"),
    ("LS_COLORS", "rs=0:di=01;34:ln=01;36:*.tar=01;31:*.tgz=01;31:*.7z=01;31"),
    ("NODE_OPTIONS", "--max-old-space-size=8192"),
    ("CLAUDE_CONFIG_DIR", "/home/ana/.claude"),
    ("CLAUDE_CODE_MAX_OUTPUT_TOKENS", "32000"),
    ("CLAUDE_CODE_USE_BEDROCK", "1"),
    ("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1"),
    ("ANTHROPIC_BASE_URL", "http://127.0.0.1:8080"),
    ("DATABASE_URL", "postgres://db.example.org/shop"),
    ("HTTP_PROXY", "http://proxy.example.org:3128"),
    ("GIT_AUTHOR_NAME", "Ana Author"),
    ("KEYBOARD_LAYOUT", "de"),
    ("MAKE_TARGET", "x86_64-unknown-linux-gnu"),
    ("CARGO_BUILD_TARGET", "aarch64-unknown-linux-musl-2.31"),
    ("CMAKE_PREFIX_PATH", "/opt/qt/6.7.2/gcc_64/lib/cmake"),
    ("COMPOSE_PROJECT_NAME", "shop-development-environment"),
    ("RELEASE", "shop-2026.11.30-rc1"),
    ("KUBECONFIG", "/home/ana/.kube/config"),
    ("AWS_REGION", "eu-central-1"),
    ("PYTEST_ADDOPTS", "-q -p no:cacheprovider"),
    ("DEBUG", "app:*,-app:socket"),
    ("PS1", r"\u@\h:\w\$ "),
    ("EMPTY", ""),
    ("TEXT", "two\nlines, and umlauts: äöü"),
]


@pytest.mark.parametrize("name", BY_NAME)
def test_telling_names(name: str) -> None:
    kept = without_secrets({name: "x", "HOME": "/home/ana"})
    assert kept.variables == (("HOME", "/home/ana"),)
    assert kept.hidden == (name,)


@pytest.mark.parametrize(("name", "value"), BY_VALUE)
def test_telling_values(name: str, value: str) -> None:
    assert without_secrets({name: value}) == ((), (name,), ())


@pytest.mark.parametrize("name", OF_AGENTS)
def test_what_agents_set_for_their_children(name: str) -> None:
    assert without_secrets({name: "1"}).hidden == (name,)


@pytest.mark.parametrize(("name", "value"), STAY)
def test_everything_else_stays(name: str, value: str) -> None:
    assert without_secrets({name: value}) == (((name, value),), (), ())


def test_sorted() -> None:
    kept = without_secrets({"Z": "1", "A_TOKEN": "2", "B": "3", "A": "4"})
    assert kept.variables == (("A", "4"), ("B", "3"), ("Z", "1"))


@pytest.mark.parametrize(
    "name", ["BASH_FUNC_which%%", "a b", "", "1A", "x" * 300, "ghp_0123456789abcdefABCDEF01"]
)
def test_names_that_are_none_are_not_even_named(name: str) -> None:
    kept = without_secrets({name: "value"})
    assert (kept.variables, kept.hidden) == ((), ())
    assert len(kept.missing) == 1
    assert not name or name not in kept.missing[0]


def test_bounds() -> None:
    assert is_secret("LONG", "a b " * (LONGEST_VALUE // 4 + 1))
    many = {f"V{number}": "x" for number in range(MOST_VARIABLES + 7)}
    kept = without_secrets(many)
    assert (len(kept.variables), kept.missing) == (MOST_VARIABLES, ("7 more variables",))
    large = {f"V{number}": "a b " * 2000 for number in range(100)}
    kept = without_secrets(large)
    assert sum(len(name) + len(value) for name, value in kept.variables) <= MOST_BYTES
    assert kept.missing


def test_the_names_that_are_always_kept_are_no_secrets_themselves() -> None:
    assert all(not is_secret(name, "x") for name in ALWAYS)


# -- random text ----------------------------------------------------------------------------

ALPHABETS = {
    "hexadecimal": "0123456789abcdef",
    "base 36": string.ascii_lowercase + string.digits,
    "base 62": string.ascii_letters + string.digits,
}


@pytest.mark.parametrize("alphabet", ALPHABETS)
def test_random_text_is_seen(alphabet: str) -> None:
    """Of 32 characters; a few are as regular as words are, by chance."""
    dice = random.Random(7)
    keys = ["".join(dice.choices(ALPHABETS[alphabet], k=32)) for _ in range(2000)]
    assert sum(looks_random(key) for key in keys) >= 1980


def test_random_bytes_in_base_64_are_seen() -> None:
    dice = random.Random(7)
    keys = [base64.b64encode(dice.randbytes(30)).decode() for _ in range(2000)]
    assert sum(looks_random(key) for key in keys) >= 1980


def test_uuids_are_seen() -> None:
    dice = random.Random(7)
    keys = [str(uuid.UUID(int=dice.getrandbits(128), version=4)) for _ in range(2000)]
    assert sum(looks_random(key) for key in keys) >= 1980


# -- whatever they stand in -----------------------------------------------------------------

_WORD = st.text(string.ascii_letters + string.digits, min_size=20, max_size=40)
_HEX = st.text("0123456789abcdef", min_size=32, max_size=40)
_UPPER = st.text(string.ascii_uppercase + string.digits, min_size=16, max_size=16)


def prefixed(prefix: str, rest: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return rest.map(lambda text: prefix + text)


FORMS = st.one_of(
    *(prefixed(f"gh{kind}_", _WORD) for kind in "pousr"),
    prefixed("github_pat_", _WORD),
    prefixed("glpat-", _WORD),
    prefixed("sk-", _WORD),
    prefixed("sk-ant-api03-", _WORD),
    prefixed("sk-proj-", _WORD),
    prefixed("sk_live_", _WORD),
    prefixed("rk_test_", _WORD),
    prefixed("whsec_", _WORD),
    prefixed("xoxb-", _WORD),
    prefixed("xapp-1-", _WORD),
    prefixed("AKIA", _UPPER),
    prefixed("ASIA", _UPPER),
    prefixed("AIza", _WORD.map(lambda text: text.ljust(35, "x"))),
    prefixed("ya29.", _WORD),
    prefixed("GOCSPX-", _WORD),
    prefixed("npm_", _WORD.map(lambda text: text.ljust(36, "x"))),
    prefixed("pypi-", _WORD.map(lambda text: text.ljust(40, "x"))),
    prefixed("dckr_pat_", _WORD),
    prefixed("hf_", _WORD),
    prefixed("dop_v1_", _HEX),
    prefixed("hvs.", _WORD),
    prefixed("tskey-auth-", _WORD),
    prefixed("dapi", _HEX),
    st.tuples(_WORD, _WORD, _WORD).map(lambda parts: "eyJ" + ".eyJ".join(parts)),
    st.tuples(_WORD, _WORD).map(lambda parts: f"SG.{parts[0]}.{parts[1]}"),
    _WORD.map(lambda text: f"postgres://ana:{text}@db/shop"),
    _WORD.map(lambda text: f"password={text}"),
    _WORD.map(lambda text: f"Authorization: Bearer {text}"),
    _WORD.map(
        lambda text: f"-----BEGIN RSA PRIVATE KEY-----\n{text}\n-----END RSA PRIVATE KEY-----"
    ),
)
AROUND = st.text(" \n:;,='\"/()[]{}|&<>", max_size=5)
NAMES = st.one_of(
    st.from_regex(r"\A[A-Za-z_][A-Za-z0-9_]{0,20}\Z"),
    st.sampled_from(["EXTRA", "OPTIONS", "LESS", "PIP_INDEX_URL"]),
).filter(lambda name: name not in ALWAYS and not name.startswith("LC_"))


@given(name=NAMES, secret=FORMS, before=AROUND, after=AROUND, other=st.text(max_size=20))
def test_no_secret_of_a_known_form_survives(
    name: str, secret: str, before: str, after: str, other: str
) -> None:
    kept = without_secrets({"OTHER": other, name: before + secret + after})
    assert name not in dict(kept.variables)
    assert secret not in str(kept)


@given(name=st.sampled_from(sorted(ALWAYS)), secret=FORMS)
def test_not_even_where_everything_else_is_kept(name: str, secret: str) -> None:
    """Names of passwords in a value mean nothing there: PATH=/opt/auth:/bin."""
    if not secret.startswith(("password", "Authorization")):
        assert without_secrets({name: f"/bin:{secret}:/usr/bin"}).hidden == (name,)


@given(st.dictionaries(st.text(max_size=30), st.text(max_size=100), max_size=20))
def test_any_environment(environment: dict[str, str]) -> None:
    kept = without_secrets(environment)
    names = [name for name, _ in kept.variables] + list(kept.hidden)
    assert set(names) <= environment.keys()
    assert len(names) == len(set(names))
    assert all(environment[name] == value for name, value in kept.variables)
