"""OpenCode: what cowfs makes of the files that its plugin writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cowfs.agents.base import MAIN, START, NotCopyableError
from cowfs.agents.opencode.adapter import OpenCode
from cowfs.agents.opencode.settings import is_ours, plugin, settings
from cowfs.agents.settings import PROJECT, USER, Where
from tests.agents.opencode.writing import DIRECTORY, INFO, SESSION, TRANSCRIPT, Session, write
from tests.agents.talks import Answer, Calls, Said

OPENCODE = OpenCode()
TALK = (
    Said("one", (Calls((1, 0)), Answer("done one"))),
    Said("two", (Answer("done two"),)),
)


def copy(data: bytes, **more: Any) -> Any:
    where = {"transcript": TRANSCRIPT, "cwd": "", "session": SESSION}
    return OPENCODE.copy({MAIN: data}, **{**where, **more})


def text_of(session: Session) -> bytes:
    return "".join(session.lines).encode()


def said(session: Session, role: str, *texts: str) -> dict[str, Any]:
    """A finished message."""
    message = session.message(role, 1796037470554)
    message["info"]["time"]["completed"] = 1796037470999
    name = message["info"]["id"]
    message["parts"] = [session.part(name, "text", text=text) for text in texts]
    session.write(message)
    return message


# -- reading ---------------------------------------------------------------------------------------


def test_read() -> None:
    read = OPENCODE.read({MAIN: write(TALK)})
    assert [turn.prompt for turn in read.turns] == ["one", "two"]
    assert read.turns[0].leaf == "1"
    assert read.turns[0].prompt_id.startswith("msg_")
    assert read.turns[0].time == "2026-11-30T11:17:50.554000+00:00"
    assert (read.title, read.cwd, read.version) == ("Add them up", "/home/ada/shop", "1.18.33")
    assert read.last_answer == "done two"
    assert OPENCODE.read({}).leaf == START


def test_what_the_program_said_for_the_user_is_no_prompt() -> None:
    session = Session()
    message = said(session, "user", "one", "a hint", "told")
    message["parts"][1]["synthetic"] = True
    message["parts"][2]["ignored"] = True
    session.write(message)
    assert [turn.prompt for turn in OPENCODE.read({MAIN: text_of(session)}).turns] == ["one"]


def test_what_is_gone() -> None:
    """A message that was removed, and what /undo hides."""
    session = Session()
    said(session, "user", "one")
    gone = said(session, "user", "two")
    hidden = said(session, "user", "three")
    session.add({"removed": gone["info"]["id"]})
    read = OPENCODE.read({MAIN: text_of(session)})
    assert [turn.prompt for turn in read.turns] == ["one", "three"]
    session.add({"info": {**INFO, "revert": {"messageID": hidden["info"]["id"]}}})
    read = OPENCODE.read({MAIN: text_of(session)})
    assert [turn.prompt for turn in read.turns] == ["one"]


# -- copies ----------------------------------------------------------------------------------------


def test_what_a_copy_is() -> None:
    """A file to import, in which nothing has an id of the original."""
    whole = write(TALK)
    made = copy(whole)
    [(path, body)] = made.files.items()
    assert path == f"{DIRECTORY}/{made.session}.import.json"
    assert made.before == (("opencode", "import", path),)
    assert made.command == ("opencode", "--session", made.session)
    assert made.cwd == "/home/ada/shop"
    document = json.loads(body)
    assert document["info"] == {**INFO, "id": made.session}
    names = {
        holder["id"] for one in document["messages"] for holder in (one["info"], *one["parts"])
    }
    assert not [name for name in names if name.encode() in whole]
    asked, called = document["messages"][:2]
    assert called["info"]["parentID"] == asked["info"]["id"]
    assert {part["messageID"] for part in called["parts"]} == {called["info"]["id"]}


def test_a_copy_is_a_main_session_that_nobody_shares() -> None:
    session = Session()
    more = {"parentID": SESSION, "share": {"url": "https://x"}, "revert": {"messageID": "msg_g"}}
    session.add({"info": {**INFO, **more}})
    said(session, "assistant", "done")
    [body] = copy(text_of(session)).files.values()
    assert json.loads(body)["info"].keys() == INFO.keys()


def test_parts_of_the_same_moment_stay_in_order() -> None:
    session = Session()
    message = said(session, "assistant", *"abcdefghijkl")
    for number, part in enumerate(message["parts"]):
        part["id"] = f"prt_22c2ce95a00{1:01x}{number:014d}"
    session.write(message)
    [body] = copy(text_of(session)).files.values()
    [copied] = json.loads(body)["messages"]
    names = [part["id"] for part in copied["parts"]]
    assert names == sorted(set(names))


def test_a_step_under_way_is_left_out() -> None:
    session = Session()
    said(session, "user", "one")
    said(session, "assistant", "I begin.")
    under_way = session.message("assistant", 1796037470554)
    state = {"status": "running", "input": {}}
    name = under_way["info"]["id"]
    under_way["parts"] = [session.part(name, "tool", tool="bash", callID="c", state=state)]
    session.write(under_way)
    made = copy(text_of(session))
    [body] = made.files.values()
    assert len(json.loads(body)["messages"]) == 2
    assert made.notes


def test_what_cannot_be_copied() -> None:
    asked = b"".join(write(TALK).splitlines(keepends=True)[:2])
    nameless = write(TALK).replace(SESSION.encode(), b"ses_1")
    for data in (b"", asked, nameless, b'{"message": {}}\n'):
        with pytest.raises(NotCopyableError):
            copy(data)
    with pytest.raises(NotCopyableError):
        copy(write(TALK), leaf=START)


def test_where_the_files_are(tmp_path: Path) -> None:
    (tmp_path / SESSION).mkdir()
    (tmp_path / SESSION / "ses_b.jsonl").touch()
    found = OPENCODE.sources(str(tmp_path / f"{SESSION}.jsonl"))
    assert [source.name for source in found] == [MAIN, f"{SESSION}/ses_b.jsonl"]


def test_settings() -> None:
    where = Where(USER, "/home/ada", "/w", {}, ("/opt/cow fs/cowfs",))
    [user] = settings(where)
    assert user.path == "/home/ada/.config/opencode/plugins/cowfs.js"
    assert user.text is not None
    assert 'const COMMAND = ["/opt/cow fs/cowfs"]\n' in user.text
    assert is_ours(user.text)
    assert is_ours(plugin(("cowfs",)))
    assert not is_ours("// another plugin\n")
    [project] = settings(Where(PROJECT, "/home/ada", "/w", {}))
    assert project.path == "/w/.opencode/plugins/cowfs.js"
    [moved] = settings(Where(USER, "/home/ada", "/w", {"XDG_CONFIG_HOME": "/c"}))
    assert moved.path == "/c/opencode/plugins/cowfs.js"
