"""Where conversations lie: the files that belong to one, and the place for a copy."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cowfs.agents.base import MAIN, Agent, Copy, Source
from cowfs.agents.claude import places
from cowfs.agents.claude.adapter import adapter
from tests.agents.claude.conversations import SESSION, Transcript

CLAUDE: Agent = adapter("claude")


def write(top: Path, *names: str) -> None:
    for name in names:
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        (top / name).write_bytes(b"x\n")


def test_the_files_of_a_conversation_are_found(tmp_path: Path) -> None:
    main = tmp_path / f"{SESSION}.jsonl"
    write(
        tmp_path,
        main.name,
        f"{SESSION}/subagents/agent-a.jsonl",
        f"{SESSION}/subagents/agent-a.meta.json",
        f"{SESSION}/subagents/workflows/w1/agent-b.jsonl",
        f"{SESSION}/tool-results/toolu_1.txt",
        f"{SESSION}/tool-results/deep/lines.jsonl",
        f"{SESSION}/other/x",
        "other.jsonl",
    )
    beside = tmp_path / SESSION
    assert CLAUDE.sources(str(main)) == [
        Source(MAIN, str(main), "lines"),
        *(
            Source(name, str(beside / name), kind)
            for name, kind in (
                ("subagents/agent-a.jsonl", "lines"),
                ("subagents/agent-a.meta.json", "whole"),
                ("subagents/workflows/w1/agent-b.jsonl", "lines"),
                ("tool-results/deep/lines.jsonl", "whole"),
                ("tool-results/toolu_1.txt", "whole"),
            )
        ),
    ]


def test_a_conversation_that_is_not_there_yet_has_its_transcript(tmp_path: Path) -> None:
    main = str(tmp_path / f"{SESSION}.jsonl")
    assert CLAUDE.sources(main) == [Source(MAIN, main, "lines")]
    assert CLAUDE.sources("odd") == [Source(MAIN, "odd", "lines")]
    assert len(CLAUDE.sources("a\0b.jsonl")) == 1


def test_symbolic_links_and_other_things_are_not_followed(tmp_path: Path) -> None:
    write(tmp_path, "secret/key.txt", f"{SESSION}/tool-results/r.txt")
    beside = tmp_path / SESSION
    (beside / "tool-results/link.txt").symlink_to(tmp_path / "secret/key.txt")
    (beside / "tool-results/links").symlink_to(tmp_path / "secret")
    (beside / "subagents").symlink_to(tmp_path / "secret")
    os.mkfifo(beside / "tool-results/fifo")
    names = [source.name for source in CLAUDE.sources(f"{beside}.jsonl")]
    assert names == [MAIN, "tool-results/r.txt"]
    beside.rename(tmp_path / "moved")
    beside.symlink_to(tmp_path / "moved")
    assert len(CLAUDE.sources(f"{beside}.jsonl")) == 1


def test_there_is_an_end_to_the_files_of_a_conversation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(places, "MOST_FILES", 3)
    write(tmp_path, *(f"{SESSION}/tool-results/{n}.txt" for n in range(5)))
    write(tmp_path, f"{SESSION}/subagents/{'d/' * 20}agent-a.jsonl")
    names = [source.name for source in CLAUDE.sources(str(tmp_path / f"{SESSION}.jsonl"))]
    assert names == [MAIN, "tool-results/0.txt", "tool-results/1.txt"]


@pytest.mark.parametrize(
    ("path", "wanted"),
    [
        ("/a/b/ws.dir", "-a-b-ws-dir"),
        ("/home/u/My App_2", "-home-u-My-App-2"),
        ("/e\u0301x", "-e-x"),
        ("/\u4e2d", "--"),
        ("/\U0001f600", "---"),
    ],
)
def test_a_slug_is_made_of_letters_and_digits(path: str, wanted: str) -> None:
    assert places.slug(path) == wanted


def copy(lies_in: Path, ran_in: str, cwd: str) -> Copy:
    made = Transcript(cwd=ran_in)
    made.turn("one", "First.")
    made.cwd = f"{ran_in}/sub"
    made.turn("two", "Second.")
    transcript = str(lies_in / f"{SESSION}.jsonl")
    return CLAUDE.copy({MAIN: made.data}, transcript=transcript, cwd=cwd, session=SESSION)


@pytest.mark.parametrize("cwd", ["", "/w/app", "/w/app/sub"])
def test_a_copy_lies_where_the_conversation_began(tmp_path: Path, cwd: str) -> None:
    project = tmp_path / ".claude/projects/-w-app"
    made = copy(project, "/w/app", cwd)
    assert list(made.files) == [str(project / f"{made.session}.jsonl")]
    assert made.cwd == "/w/app"
    assert made.command == ("claude", "--resume", made.session)


def test_a_conversation_that_moved_into_a_worktree_goes_on_there(tmp_path: Path) -> None:
    project = tmp_path / ".claude/projects/-w-trees-one"
    made = Transcript(cwd="/w/app")
    made.turn("one", "First.")
    made.cwd = "/w/trees/one"
    made.turn("two", "Second.")
    transcript = str(project / f"{SESSION}.jsonl")
    found = CLAUDE.copy({MAIN: made.data}, transcript=transcript, cwd="", session=SESSION)
    assert list(found.files) == [str(project / f"{found.session}.jsonl")]
    assert found.cwd == "/w/trees/one"


def test_a_copy_for_another_directory_lies_with_the_conversations_of_that(tmp_path: Path) -> None:
    (tmp_path / "real.dir").mkdir()
    (tmp_path / "link").symlink_to("real.dir")
    projects = tmp_path / ".claude/projects"
    made = copy(projects / "-w-app", "/w/app", str(tmp_path / "link"))
    name = places.slug(os.path.realpath(tmp_path / "real.dir"))
    assert list(made.files) == [str(projects / name / f"{made.session}.jsonl")]
    assert made.cwd == str(tmp_path / "link")


def test_the_directory_of_a_long_path_is_found_by_its_beginning(tmp_path: Path) -> None:
    projects = tmp_path / "projects"
    path = "/" + "d" * 210
    here = copy(projects / "-w-app", "/w/app", path)
    assert list(here.files) == [str(projects / f"-w-app/{here.session}.jsonl")], "it is found there"
    project = projects / f"-{'d' * 199}-1x2y3z"
    project.mkdir(parents=True)
    made = copy(projects / "-w-app", "/w/app", path)
    assert list(made.files) == [str(project / f"{made.session}.jsonl")]
    assert copy(project, path, "").cwd == path


def test_a_copy_that_the_program_would_not_find_is_named_by_its_path(tmp_path: Path) -> None:
    made = copy(tmp_path / "elsewhere", "/w/app", "")
    (path,) = made.files
    assert path == str(tmp_path / "elsewhere" / f"{made.session}.jsonl")
    assert made.command == ("claude", "--resume", path)


def test_a_configuration_in_another_place_is_said(tmp_path: Path) -> None:
    made = copy(tmp_path / "config/projects/-w-app", "/w/app", "")
    assert made.command == ("claude", "--resume", made.session)
    assert made.notes == (f"Claude Code finds it only with CLAUDE_CONFIG_DIR={tmp_path}/config",)
    assert copy(tmp_path / ".claude/projects/-w-app", "/w/app", "").notes == ()
