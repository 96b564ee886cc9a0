"""Secrets in command lines are not stored."""

from __future__ import annotations

import pytest

from cowfs.volume.audit_redaction import concealed, has_key, redacted

SECRETS = [
    "deploy --password hunter2secret",
    "deploy --password=hunter2secret",
    "deploy --db-password=hunter2secret --verbose",
    "deploy --token hunter2secret",
    "deploy --api-key=hunter2secret",
    "deploy --api_key hunter2secret",
    "env AWS_SECRET_ACCESS_KEY=hunter2secret make",
    "bash -c 'export GITHUB_TOKEN=hunter2secret; make'",
    "bash -c 'curl --token hunter2secret http://x'",
    "curl -u ana:hunter2secret https://example.org",
    "curl -uana:hunter2secret https://example.org",
    "curl --cookie hunter2secret https://example.org",
    "git clone https://ana:hunter2secret@example.org/x.git",
    "git clone https://hunter2secret@example.org/x.git",
    "curl -H 'Authorization: Bearer hunter2secret' https://example.org",
    "curl -H 'X-Api-Key: hunter2secret' https://example.org",
    """curl -d '{"password": "hunter2secret"}' https://example.org""",
    "mysql -phunter2secret -u root",
    "sshpass -p hunter2secret ssh host",
]
KNOWN = [
    "x ghp_0123456789abcdefABCDEF0123456789abcd",
    "x AKIAIOSFODNN7EXAMPLE",
    "x glrt-0123456789abcdefghij",
    "x sk_live_0123456789abcdefghij",
    "x hvs.CAESIJ0123456789abcdefgh",
    "x https://hooks.slack.com/services/T00000000/B00000000/abcdefghijklmnop",
    "x '-----BEGIN RSA PRIVATE KEY-----\nMIIEow\n-----END RSA PRIVATE KEY-----'",
    "x sk-0123456789abcdef0123456789",
    "x xoxb-0123456789-abcdef",
    "x eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl",
]
HARMLESS = [
    "rm -rf build",
    "sed -i s/hello/bye/ README",
    "python3 -m pytest tests/test_token.py -k password",
    "git commit -m message",
    "cp -p one two",
    "curl https://example.org/a?b=c",
    "tar -czf author.tar.gz authors",
    "git log --author=ana",
    "git commit --author 'Ana Author'",
    "make risk-assessment-and-other-things",
]


def words(line: str) -> list[bytes]:
    """As a shell splits it; quotes only around whole words."""
    out, at = [], 0
    while at < len(line):
        if line[at] == "'":
            end = line.index("'", at + 1)
            out.append(line[at + 1 : end])
            at = end + 2
        else:
            end = line.find(" ", at)
            end = len(line) if end < 0 else end
            out.append(line[at:end])
            at = end + 1
    return [word.encode() for word in out]


@pytest.mark.parametrize("line", SECRETS)
def test_values_with_telling_names(line: str) -> None:
    found = b" ".join(redacted(words(line)))
    assert b"hunter2secret" not in found
    assert b"***" in found
    assert found.split()[0] == line.split()[0].encode()


@pytest.mark.parametrize("line", KNOWN)
def test_keys_of_known_forms(line: str) -> None:
    assert redacted(words(line)) == [b"x", b"***"]


@pytest.mark.parametrize("line", HARMLESS)
def test_everything_else_is_left_as_it_is(line: str) -> None:
    assert redacted(words(line)) == words(line)


def test_any_text() -> None:
    """A command as an agent gives it to its tool: one text."""
    line = """curl -H "Authorization: Bearer hunter2secret" -d 'token="two words"' https://a:b@c/"""
    assert concealed(line) == "curl -H \"Authorization: *** -d 'token=***' https://***@c/"
    assert concealed("make \ud800 all") == "make \ud800 all"
    assert has_key("see https://ana:hunter2@example.org/")
    assert not has_key("see https://example.org/?q=a@b")


def test_nothing() -> None:
    assert redacted([]) == []
    assert redacted([b""]) == [b""]
