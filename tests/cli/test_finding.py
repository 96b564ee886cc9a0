"""Finding what was lost: log of paths, find, bisect."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command import Cowfs


def checkpoint(cowfs: Cowfs, *options: str) -> str:
    made: str = cowfs.ok("checkpoint", *options)["checkpoint"]["id"]
    return made


def happened(document: dict[str, Any]) -> list[tuple[str, list[str], str | None]]:
    return [
        (row["id"], event["happened"], event["old_path"])
        for row in document["checkpoints"]
        for event in row["events"]
    ]


# -- log ------------------------------------------------------------------------------------


def test_the_log_of_a_path(cowfs: Cowfs, mounted: Path) -> None:
    (mounted / "one").write_text("1\n")
    one = checkpoint(cowfs, "-m", "made it")
    (mounted / "other").write_text("x")
    checkpoint(cowfs)
    (mounted / "one").rename(mounted / "two")
    (mounted / "two").write_text("2\n")
    two = checkpoint(cowfs)
    document = cowfs.ok("log", "two")
    assert happened(document) == [
        (two, ["renamed", "modified"], "one"),
        (one, ["created"], None),
    ]
    assert (document["more"], document["gone"], document["at_start"]) == (False, [], {})
    assert document["checkpoints"][1]["events"][0]["asked"] == "two"
    lines = cowfs.says("log", "two").splitlines()
    assert [two[:8] in lines[0], one[:8] in lines[1]] == [True, True]
    assert "renamed from one, modified" in lines[0]
    assert re.search(r"  created \(as one\) +made it$", lines[1])
    (mounted / "two").unlink()
    assert cowfs.ok("log", "two")["head_events"][0]["happened"] == ["deleted"]
    said = cowfs.says("log", "two")
    assert re.match(r"@ +now +deleted\n", said)
    assert said.endswith("two is not there now\n")
    assert cowfs.says("log", "-n", "1", "two").splitlines()[2].startswith("… and older ones")
    (mounted / "sub").mkdir()
    assert happened(cowfs.ok("log", "../two", cwd=mounted / "sub")) == happened(document)


def test_the_log_of_what_never_was(cowfs: Cowfs, mounted: Path) -> None:
    error = cowfs.fails("log", "never")
    assert error["code"] == "COWFS_UNKNOWN_PATH"
    assert cowfs.fails("log", "/etc/passwd")["code"] == "COWFS_USAGE"
    name = sorted(os.listdir(mounted))[0]
    assert cowfs.ok("log", name)["checkpoints"] == []


def test_why_no_checkpoint_matches(cowfs: Cowfs, mounted: Path) -> None:
    """A time that is not understood is not one before the first checkpoint."""

    def why(*words: str) -> str:
        error = cowfs.fails(*words)
        assert error["code"] == "COWFS_UNKNOWN_CHECKPOINT"
        assert error["message"].endswith(error["details"]["why"])
        return str(error["details"]["why"])

    for text in ("1 fortnight ago", "25:99", "2026-13-01", "soon"):
        assert "no time" in why("restore", f"@{{{text}}}")
        assert "no time" in why("log", "--since", f"@{{{text}}}")
        assert "no time" in why("log", "--since", text)
        assert "no time" in why("changes", "--until", text)
    for text in ("1998-01-01", "1998-01-01 14:30", "9000 days ago"):
        assert "younger" in why("restore", f"@{{{text}}}")
    assert "so many" in why("restore", "@~99999")
    for text in ("@x", "@~", "@~-1", "@{}", "@{now"):
        assert "{TIME}" in why("restore", text)
    assert why("restore", "nothing") == ""


def test_the_log_of_messages_kinds_and_times(cowfs: Cowfs, mounted: Path) -> None:
    one = checkpoint(cowfs, "-m", "Fix the tax", "--label", "v1")
    two = checkpoint(cowfs, "-m", "other")
    cowfs.ok("restore", one)

    def ids(*options: str) -> list[str]:
        document = cowfs.ok("log", *options)
        assert document["total"] == len(document["checkpoints"])
        return [row["id"] for row in document["checkpoints"]]

    assert ids("--grep", "tax") == [one]
    assert ids("--grep", "TAX|^v", "-i") == [one]
    assert ids("--grep", "^v1$") == [one]
    assert ids("--grep", "TAX") == []
    assert ids("--kind", "manual", "--until", two) == [two, one]
    assert ids("--kind", "start", "--kind", "rescue", "--since", two)[1:] == []
    assert ids("--until", "2 days ago") == []
    assert one in ids("--since", "2 days ago")
    assert cowfs.fails("log", "--grep", "(")["code"] == "COWFS_USAGE"
    assert cowfs.fails("log", "--since", "never")["code"] == "COWFS_UNKNOWN_CHECKPOINT"
    lines = cowfs.says("log", "--kind", "manual").splitlines()
    assert [line[0] for line in lines] == ["o", "*"]


# -- find -----------------------------------------------------------------------------------


def test_the_command_that_find_tells_brings_it_back(cowfs: Cowfs, mounted: Path) -> None:
    odd = mounted / "a dir" / "it's.py"
    odd.parent.mkdir()
    odd.write_text("precious\n")
    one = checkpoint(cowfs)
    odd.unlink()
    odd.parent.rmdir()
    checkpoint(cowfs)
    (found,) = cowfs.ok("find", "it's.py")["found"]
    assert (found["path"], found["there"], found["checkpoint"]) == ("a dir/it's.py", False, one)
    assert (found["size"], found["type"], found["moved_to"]) == (9, "file", [])
    assert found["command"] == f"cowfs restore {one[:8]} -- " + shlex.quote("a dir/it's.py")
    said = cowfs.says("find", "it's.py").splitlines()
    assert said[1].strip() == found["command"]
    show = shlex.split(found["show_command"])
    assert cowfs.says(*show[1:]) == "precious\n"
    cowfs.ok(*shlex.split(found["command"])[1:])
    assert odd.read_text() == "precious\n"
    (found,) = cowfs.ok("find", "*'s.py")["found"]
    assert (found["there"], found["command"]) == (True, None)
    assert cowfs.fails("find", "it's.py", "--deleted")["code"] == "COWFS_NAME_NOT_FOUND"


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_a_name_that_cannot_be_printed(cowfs: Cowfs, mounted: Path) -> None:
    odd = os.fsencode(mounted) + b"/it's\x1b \\n\xff"
    with open(odd, "wb") as file:
        file.write(b"x")
    checkpoint(cowfs)
    os.unlink(odd)
    (found,) = cowfs.ok("find", "it's*")["found"]
    assert found["command"].isascii()
    said = cowfs.says("find", "it's*").splitlines()
    assert said[1].strip() == found["command"]
    words = subprocess.run(
        ["bash", "-c", f"printf '%s\\0' {found['command']}"], check=True, stdout=subprocess.PIPE
    ).stdout.split(b"\0")
    assert cowfs.run(*map(os.fsdecode, words[1:-1])).code == 0
    assert os.path.exists(odd)


def test_who_removed_it(cowfs: Cowfs, mounted: Path) -> None:
    (mounted / "kept").write_text("x")
    (mounted / "lost").write_text("x")
    one = checkpoint(cowfs)
    subprocess.run(["rm", "-f", "lost"], cwd=mounted, check=True)
    (found,) = cowfs.ok("find", "lost")["found"]
    assert found["removed"]["process"]["command"] == ["rm", "-f", "lost"]
    assert f"last in {one[:8]}" in cowfs.says("find", "lost")
    assert re.search(r", removed by .*rm -f lost.* \(\d+ s ago\)\n", cowfs.says("find", "lost"))
    (mounted / "kept").unlink()
    checkpoint(cowfs)
    (found,) = cowfs.ok("find", "kept")["found"]
    assert found["removed"]["process"]["pid"] == os.getpid()


def test_the_command_is_for_where_the_user_is(cowfs: Cowfs, mounted: Path) -> None:
    (mounted / "gone").write_text("x")
    one = checkpoint(cowfs)
    (mounted / "gone").unlink()
    (mounted / "sub").mkdir()
    (found,) = cowfs.ok("find", "gone", cwd=mounted / "sub")["found"]
    assert found["command"] == f"cowfs restore {one[:8]} -- ../gone"
    outside = cowfs.run("-C", mounted, "find", "--json", "gone", cwd=cowfs.top).document
    command = shlex.split(outside["found"][0]["command"])
    assert command[:3] == ["cowfs", "-C", str(mounted)]
    cowfs.cwd = cowfs.top
    assert cowfs.run(*command[1:]).code == 0
    assert (mounted / "gone").read_text() == "x"


def test_a_name_that_is_a_path_from_here(cowfs: Cowfs, mounted: Path) -> None:
    """As `log` and `restore` take it: what a user has typed once is typed again."""
    (mounted / "src" / "lost").write_text("x")
    checkpoint(cowfs)
    (mounted / "src" / "lost").unlink()
    for name in (str(mounted / "src" / "lost"), "./lost", "../src/lost", "../*/lost"):
        found = cowfs.ok("find", name, cwd=mounted / "src")["found"]
        assert [row["path"] for row in found] == ["src/lost"], name
    assert cowfs.fails("find", str(mounted / "src" / "never"))["code"] == "COWFS_NAME_NOT_FOUND"
    assert cowfs.fails("find", "/never")["code"] == "COWFS_USAGE"


def test_a_file_that_moved_and_one_that_never_was(cowfs: Cowfs, mounted: Path) -> None:
    (mounted / "before").write_text("x")
    checkpoint(cowfs)
    (mounted / "before").rename(mounted / "after")
    (found,) = cowfs.ok("find", "before")["found"]
    assert found["moved_to"] == ["after"]
    assert "is after now" in cowfs.says("find", "before")
    assert cowfs.fails("find", "--deleted", "before")["code"] == "COWFS_NAME_NOT_FOUND"
    (mounted / "brief").write_text("x")
    (mounted / "brief").unlink()
    error = cowfs.fails("find", "brief")
    assert error["code"] == "COWFS_NAME_NOT_FOUND"
    assert "between two checkpoints" in error["hint"]


# -- bisect ---------------------------------------------------------------------------------


@pytest.fixture
def steps(cowfs: Cowfs, mounted: Path) -> list[str]:
    """Seven checkpoints; number N has N in the file `number`. Commands that follow are processes of
    their own, whose streams and signals are those of what they run."""
    made = []
    for number in range(7):
        (mounted / "number").write_text(f"{number}\n")
        made.append(checkpoint(cowfs, "-m", f"step {number}"))
    cowfs.in_process = False
    return made


def below(limit: int, *, skip: str = "") -> list[str]:
    """A test that is good where the number is below a limit, and not there before the first."""
    skipping = f"case $(cat number) in {skip or 'none'}) exit 125;; esac"
    skipping += "; test -e number || exit 125"
    return ["--", "sh", "-c", f"{skipping}; test $(cat number) -lt {limit}"]


def temporary(cowfs: Cowfs) -> list[str]:
    return [name for name in os.listdir(cowfs.env["TMPDIR"]) if name.startswith("cowfs-bisect-")]


@pytest.fixture(autouse=True)
def own_temporary(cowfs: Cowfs) -> None:
    (cowfs.top / "temporary").mkdir()
    cowfs.env["TMPDIR"] = str(cowfs.top / "temporary")


def test_bisect_finds_each_culprit(cowfs: Cowfs, mounted: Path, steps: list[str]) -> None:
    before = sorted(os.listdir(mounted))
    for culprit in range(1, 7):
        document = cowfs.ok("bisect", "run", "--good", steps[0], *below(culprit))
        assert document["culprit"]["id"] == steps[culprit]
        assert document["good"] == steps[culprit - 1]
        assert [(c["path"], c["status"]) for c in document["changes"]] == [("number", "M")]
    assert sorted(os.listdir(mounted)) == before
    assert (mounted / "number").read_text() == "6\n"
    assert temporary(cowfs) == []


def test_bisect_tells_each_step(cowfs: Cowfs, mounted: Path, steps: list[str]) -> None:
    said = cowfs.says("bisect", "run", *below(3))
    assert f"testing {steps[6][:8]} step 6" in said
    assert f"{steps[5][:8]} is bad (exit code 1)" in said
    assert re.search(r"\n\d checkpoints? left, about \d steps?\n", said)
    assert f"the first bad one is {steps[3][:8]}  " in said
    assert "number | " in said
    assert temporary(cowfs) == []


def test_bisect_of_the_present_state(cowfs: Cowfs, mounted: Path, steps: list[str]) -> None:
    (mounted / "number").write_text("9\n")
    document = cowfs.ok("bisect", "run", *below(8))
    assert document["culprit"]["id"] == "@"
    assert document["good"] == steps[6]
    assert "the first bad one is the present state" in cowfs.says("bisect", "run", *below(8))


def test_bisect_with_skips(cowfs: Cowfs, mounted: Path, steps: list[str]) -> None:
    document = cowfs.ok("bisect", "run", "--good", steps[0], *below(5, skip="3"))
    assert document["culprit"]["id"] == steps[5]
    result = cowfs.run("bisect", "run", "--json", "--good", steps[0], *below(4, skip="3|4"))
    assert result.code == 67
    document = result.document
    assert document["error"]["code"] == "COWFS_BISECT_UNDECIDED"
    assert [row["id"] for row in document["among"]] == [steps[5], steps[4], steps[3]]
    assert document["culprit"] is None
    skipped = {t["checkpoint"] for t in document["tested"] if t["verdict"] == "skip"}
    assert skipped == {steps[3], steps[4]}


def test_bisect_goes_the_line_of_ancestors(cowfs: Cowfs, mounted: Path, steps: list[str]) -> None:
    """A restore went back: what was left behind is no candidate."""
    cowfs.ok("restore", steps[2])
    (mounted / "number").write_text("7\n")
    last = checkpoint(cowfs)
    document = cowfs.ok("bisect", "run", *below(5))
    assert document["culprit"]["id"] == last
    assert document["good"] == steps[2]
    assert cowfs.fails("bisect", "run", "--good", steps[4], *below(5))["code"] == (
        "COWFS_BISECT_NOT_ANCESTOR"
    )
    document = cowfs.ok("bisect", "run", "--bad", steps[6], *below(5))
    assert document["culprit"]["id"] == steps[5]


def test_bisect_with_wrong_ends(cowfs: Cowfs, mounted: Path, steps: list[str]) -> None:
    def code(*words: str) -> str:
        result = cowfs.run("bisect", "run", "--json", *words)
        assert temporary(cowfs) == []
        found: str = result.document["error"]["code"]
        assert result.document["error"]["exit_code"] == result.code
        return found

    assert code("--good", steps[4], *below(2)) == "COWFS_BISECT_END"
    assert code(*below(9)) == "COWFS_BISECT_END"
    assert code(*below(-1)) == "COWFS_BISECT_END"
    assert code("--good", "@", *below(2)) == "COWFS_BISECT_NOT_ANCESTOR"
    assert code("--good", "nothing", *below(2)) == "COWFS_UNKNOWN_CHECKPOINT"
    assert code("--", "sh", "-c", "exit 130") == "COWFS_BISECT_STOPPED"
    assert code("--", "sh", "-c", "kill -9 $$") == "COWFS_BISECT_STOPPED"
    assert code("--", "/no/such/program") == "COWFS_BISECT_STOPPED"
    assert code() == "COWFS_USAGE"
    cowfs.env["TMPDIR"] = str(mounted)
    assert code(*below(3)) == "COWFS_USAGE"


def test_the_command_of_a_bisect(cowfs: Cowfs, mounted: Path, steps: list[str]) -> None:
    """Its environment, its directory, what it writes; a closed directory is removed, too."""
    (mounted / "sub").mkdir()
    (mounted / "sub/bad").write_text("x")
    culprit = checkpoint(cowfs)
    cowfs.env["OF_THE_CALLER"] = "kept"
    script = (
        'test "$OF_THE_CALLER" = kept && test "$(pwd)" = "$PWD" || exit 130; pwd >> "$SEEN"; '
        "test ! -e left || exit 131; touch left; mkdir -p closed/in; chmod 0 closed; "
        "echo printed; test ! -e bad"
    )
    cowfs.env["SEEN"] = str(cowfs.top / "seen")
    result = cowfs.run(
        "bisect", "run", "--json", "--good", steps[6], "--", "sh", "-c", script, cwd=mounted / "sub"
    )
    # The good end has no such directory.
    assert result.document["error"]["code"] == "COWFS_BISECT_END"
    (mounted / "sub/bad").unlink()
    good = checkpoint(cowfs)
    (mounted / "sub/bad").write_text("x")
    result = cowfs.run(
        "bisect", "run", "--json", "--good", good, "--", "sh", "-c", script, cwd=mounted / "sub"
    )
    assert result.document["culprit"]["id"] == "@" != culprit
    assert "printed" in result.err
    seen = (cowfs.top / "seen").read_text().split()
    assert all(Path(line).name == "sub" for line in seen)
    assert not any(Path(line).is_relative_to(mounted) for line in seen)
    assert temporary(cowfs) == []


def test_the_directory_of_the_one_before(cowfs: Cowfs, mounted: Path, steps: list[str]) -> None:
    """The next candidate is made of it, unless something still works there or nobody wants that."""
    cowfs.env["SEEN"] = str(cowfs.top / "seen")
    cowfs.env["LEFT"] = str(cowfs.top / "left")
    ends = "; test $(cat number) -lt 3"
    start = "(setsid sleep 100 </dev/null >/dev/null 2>&1 & echo $! >> $LEFT); "

    def directories(*options: str, script: str = "") -> tuple[int, int]:
        """How many different ones there were, and in how many runs."""
        (cowfs.top / "seen").write_text("")
        script += 'stat -c %i . >> "$SEEN"; test ! -e object || exit 131; touch object'
        words = ["bisect", "run", "--good", steps[0], *options, "--", "sh", "-c", script + ends]
        assert cowfs.ok(*words)["culprit"]["id"] == steps[3]
        seen = (cowfs.top / "seen").read_text().split()
        return len(set(seen)), len(seen)

    try:
        number, runs = directories()
        assert (number, runs > 3) == (1, True)
        number, again = directories(script=start)
        assert number == again == runs
    finally:
        for pid in (cowfs.top / "left").read_text().split():
            os.kill(int(pid), signal.SIGKILL)
    assert temporary(cowfs) == []
    assert directories("--fresh")[1] == runs


def test_an_interrupted_bisect_leaves_nothing(
    cowfs: Cowfs, mounted: Path, steps: list[str]
) -> None:
    words = ["bisect", "run", "--", "sh", "-c", "echo started; exec sleep 60"]
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        with cowfs.start(*words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            assert process.stdout is not None
            while process.stdout.readline() != b"started\n":
                assert process.poll() is None
            assert temporary(cowfs) != []
            process.send_signal(number)
            process.communicate(timeout=60)
        assert process.returncode == 130
        assert temporary(cowfs) == []


def test_without_a_mount(cowfs: Cowfs, mounted: Path, steps: list[str]) -> None:
    (mounted / "number").unlink()
    last = checkpoint(cowfs)
    cowfs.ok("unmount", mounted, cwd=cowfs.top)
    found = happened(cowfs.ok("log", "number", "-n", "2"))
    assert [row for row in found if row[0] in (last, steps[6])] == [
        (last, ["deleted"], None),
        (steps[6], ["modified"], None),
    ]
    (row,) = cowfs.ok("find", "number")["found"]
    assert row["checkpoint"] == steps[6]
    document = cowfs.ok("bisect", "run", "--bad", steps[6], *below(4))
    assert document["culprit"]["id"] == steps[4]
    assert temporary(cowfs) == []
