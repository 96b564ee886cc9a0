"""Who did it, on a real mount: `cowfs changes` and `cowfs blame`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command import Cowfs
from tests.mount.calls import child_process

pytestmark = pytest.mark.usefixtures("own_processes")

PYTHON = "import os, sys, mmap, time\n"


def run(*command: str, cwd: Path) -> None:
    subprocess.run(command, cwd=cwd, check=True)


def shell(line: str, cwd: Path) -> None:
    run("bash", "-c", line, cwd=cwd)


def told(cowfs: Cowfs, *arguments: str | Path, cwd: Path | None = None) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = cowfs.ok("changes", *arguments, cwd=cwd)["changes"]
    return found


def last(cowfs: Cowfs, place: Path) -> dict[str, Any]:
    """The newest story about what is below a directory."""
    return told(cowfs, place)[-1]


def paths(story: dict[str, Any], place: Path) -> list[str]:
    return [Path(row["path"]).relative_to(place.name).as_posix() for row in story["paths"]]


def by(story: dict[str, Any]) -> tuple[str, list[str]]:
    return story["process"]["name"], story["process"]["command"][1:]


# -- what programs do -----------------------------------------------------------------------


def test_rm_of_a_tree(shared_cowfs: Cowfs, place: Path) -> None:
    (place / "build" / "deep").mkdir(parents=True)
    for number in range(20):
        (place / "build" / "deep" / f"o{number}").touch()
    shell("rm -rf build; true", place)
    story = last(shared_cowfs, place)
    assert (story["operation"], story["files"], story["directories"]) == ("removed", 20, 2)
    assert story["below"] == f"{place.name}/build"
    assert by(story) == ("rm", ["-rf", "build"])
    assert story["process"]["parents"][0]["name"] == "bash"
    assert (story["process"]["uid"], story["outside"]) == (os.geteuid(), False)
    text = shared_cowfs.says("changes", place).splitlines()[-1]
    assert text.endswith(
        f"bash `rm -rf build` removed 20 files and 2 directories below {place.name}/build/"
    )


def test_mv(shared_cowfs: Cowfs, place: Path) -> None:
    (place / "one").touch()
    run("mv", "one", "two", cwd=place)
    story = last(shared_cowfs, place)
    name = place.name
    assert story["operation"] == "renamed"
    assert story["paths"] == [{"path": f"{name}/one", "to": f"{name}/two"}]
    assert by(story) == ("mv", ["one", "two"])
    assert story["text"].endswith(f"`mv one two` renamed {name}/one to {name}/two")


def test_sed_in_place(shared_cowfs: Cowfs, place: Path) -> None:
    """A new file takes the place of the old one."""
    (place / "f").write_text("old\n")
    run("sed", "-i", "s/old/new/", "f", cwd=place)
    story = last(shared_cowfs, place)
    assert (story["operation"], paths(story, place)) == ("changed", ["f"])
    assert by(story) == ("sed", ["-i", "s/old/new/", "f"])


def test_a_redirect_of_a_program(shared_cowfs: Cowfs, place: Path) -> None:
    """The shell's child opens the file, and becomes the program that writes it."""
    (place / "in").write_text("b\na\n")
    shell("sort in > out; true", place)
    stories = [story for story in told(shared_cowfs, place) if paths(story, place) == ["out"]]
    # Two, if a group was closed before the child became that program.
    assert stories[0]["operation"] == "made"
    assert sum(story["bytes"] for story in stories) == 4
    assert stories[-1]["process"]["name"] == "sort"
    assert stories[-1]["process"]["parents"][0]["name"] == "bash"


def test_a_redirect_of_the_shell_itself(shared_cowfs: Cowfs, place: Path) -> None:
    line = "for i in 1 2 3 4 5; do echo $i >> log; done"
    shell(line, place)
    story = last(shared_cowfs, place)
    assert (story["files"], paths(story, place)) == (1, ["log"])
    assert by(story) == ("bash", ["-c", line])


def test_pages_that_are_written_back_after_the_process_ended(
    shared_cowfs: Cowfs, place: Path
) -> None:
    """Another process has the file open, so that the close of the first one is not the last."""
    code = PYTHON + (
        "fd = os.open('f', os.O_RDWR); m = mmap.mmap(fd, 8192); m[:5] = b'hello'; os._exit(0)"
    )
    (place / "f").write_bytes(bytes(8192))
    shared_cowfs.ok("checkpoint")
    with open(place / "f", "rb"):
        process = subprocess.Popen([sys.executable, "-c", code], cwd=place)
        process.wait()
        story = told(shared_cowfs, "--since", "@~1", place)[-1]
    assert (story["operation"], paths(story, place)) == ("changed", ["f"])
    assert story["process"]["pid"] == process.pid
    assert (place / "f").read_bytes()[:5] == b"hello"


def test_a_mapping_that_is_flushed_while_the_process_runs(shared_cowfs: Cowfs, place: Path) -> None:
    """By the kernel, in the name of whoever asks for it: here the daemon, for `changes`."""
    code = PYTHON + (
        "fd = os.open('f', os.O_RDWR); m = mmap.mmap(fd, 8192); os.close(fd); m[:5] = b'hello'\n"
        "print('ready', flush=True); sys.stdin.read()"
    )
    (place / "f").write_bytes(bytes(8192))
    shared_cowfs.ok("checkpoint")
    command = [sys.executable, "-c", code]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=place, stdin=pipe, stdout=pipe) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        story = told(shared_cowfs, "--since", "@~1", place)[-1]
        process.communicate(b"")
    assert (story["operation"], story["process"]["pid"]) == ("changed", process.pid)


def test_two_processes_side_by_side(shared_cowfs: Cowfs, place: Path) -> None:
    code = PYTHON + (
        "for n in range(20):\n"
        "    with open(sys.argv[1], 'ab') as f: f.write(b'x' * 100)\n"
        "    sys.stdin.readline()"
    )
    pipe = subprocess.PIPE
    pair = [
        subprocess.Popen([sys.executable, "-c", code, name], cwd=place, stdin=pipe)
        for name in ("one", "two")
    ]
    for _ in range(20):
        for process in pair:
            assert process.stdin is not None
            process.stdin.write(b"\n")
            process.stdin.flush()
    for process in pair:
        process.communicate()
    found = {story["process"]["pid"]: story for story in told(shared_cowfs, place)}
    assert [paths(found[p.pid], place) for p in pair] == [["one"], ["two"]]


def test_what_the_kernel_does_by_itself_is_no_operation(shared_cowfs: Cowfs, place: Path) -> None:
    """Times that it writes back, checkpoints, and reading."""
    (place / "f").write_text("x")
    before = told(shared_cowfs, place)
    shared_cowfs.ok("checkpoint")
    (place / "f").read_text()
    list(place.iterdir())
    os.sync()
    shared_cowfs.ok("checkpoint")
    assert told(shared_cowfs, place) == before


def test_attributes(shared_cowfs: Cowfs, place: Path) -> None:
    (place / "f").touch()
    shared_cowfs.ok("checkpoint")
    for command in (["chmod", "600", "f"], ["touch", "f"]):
        run(*command, cwd=place)
        story = last(shared_cowfs, place)
        assert (story["operation"], by(story)[0]) == ("set attributes of", command[0])
    os.setxattr(place / "f", "user.a", b"1")
    story = last(shared_cowfs, place)
    assert (story["operation"], story["process"]["pid"]) == ("set attributes of", os.getpid())


def test_links_and_special_files(shared_cowfs: Cowfs, place: Path) -> None:
    (place / "f").touch()
    run("ln", "f", "hard", cwd=place)
    assert last(shared_cowfs, place)["text"].endswith(f"linked {place.name}/f as {place.name}/hard")
    run("ln", "-s", "f", "soft", cwd=place)
    run("mkfifo", "fifo", cwd=place)
    assert [paths(story, place) for story in told(shared_cowfs, place)][-2:] == [["soft"], ["fifo"]]


def test_secrets_are_not_stored(shared_cowfs: Cowfs, place: Path) -> None:
    run(sys.executable, "-c", "open('f','w')", "--password=hunter2secret", cwd=place)
    shared_cowfs.ok("status")
    assert last(shared_cowfs, place)["process"]["command"][-1] == "--password=***"
    ((_, store),) = shared_cowfs.mounts()
    assert b"hunter2secret" not in (store / "data.mdb").read_bytes()


# -- which ones are told --------------------------------------------------------------------


def test_since_and_until(shared_cowfs: Cowfs, place: Path) -> None:
    ids = []
    for name in ("one", "two", "three"):
        (place / name).touch()
        ids.append(shared_cowfs.ok("checkpoint")["checkpoint"]["id"])
    shared = [paths(s, place) for s in told(shared_cowfs, "--since", ids[0], place)]
    assert shared == [["two"], ["three"]]
    found = told(shared_cowfs, "--since", ids[0], "--until", ids[1], place)
    assert [paths(s, place) for s in found] == [["two"]]
    assert told(shared_cowfs, "--since", "@", place) == []
    assert shared_cowfs.fails("changes", "--since", "nothing")["code"] == "COWFS_UNKNOWN_CHECKPOINT"


def test_since_and_until_a_time(shared_cowfs: Cowfs, place: Path) -> None:
    """As `log` takes them; a checkpoint first: a label may look like a time."""
    (place / "one").touch()
    shared_cowfs.ok("checkpoint", "--label", "yesterday")
    (place / "two").touch()
    everything = [[".", "one"], ["two"]]
    for since in ("2 h ago", "2000-01-01", "2000-01-01 10:00"):
        assert [paths(s, place) for s in told(shared_cowfs, "--since", since, place)] == everything
    assert [paths(s, place) for s in told(shared_cowfs, "--until", "now", place)] == everything
    assert told(shared_cowfs, "--until", "2 h ago", place) == []
    assert told(shared_cowfs, "--since", "2000-01-01", "--until", "2000-01-02", place) == []
    found = told(shared_cowfs, "--since", "yesterday", place)
    assert [paths(s, place) for s in found] == [["two"]]
    log = shared_cowfs.ok("log", "--since", "yesterday")["checkpoints"]
    assert log[-1]["label"] == "yesterday"
    assert shared_cowfs.fails("changes", "--until", "never")["code"] == "COWFS_UNKNOWN_CHECKPOINT"


def test_by_whom(shared_cowfs: Cowfs, place: Path) -> None:
    """What a process started is its work, too."""
    with subprocess.Popen(["bash", "-c", "touch one; true"], cwd=place) as bash:
        bash.wait()
    (place / "two").touch()
    by_bash = told(shared_cowfs, "--by", str(bash.pid), place)
    assert [paths(story, place) for story in by_bash] == [["one"]]
    assert [paths(s, place) for s in told(shared_cowfs, "--by", "touch", place)] == [["one"]]
    mine = told(shared_cowfs, "--by", str(os.getpid()), place)
    assert [paths(story, place)[-1] for story in mine] == ["one", "two"]
    user = mine[0]["process"]["user"]
    assert len(told(shared_cowfs, "--by", user, place)) == len(told(shared_cowfs, place))
    assert told(shared_cowfs, "--by", "nobody-at-all", place) == []


def test_how_many(shared_cowfs: Cowfs, place: Path) -> None:
    for name in ("one", "two", "three"):
        (place / name).touch()
        shared_cowfs.ok("checkpoint")
    found = told(shared_cowfs, "-n", "2", place)
    assert [paths(story, place) for story in found] == [["two"], ["three"]]
    assert len(told(shared_cowfs, "-n", "0", place)) == 3


def test_paths_relative_to_the_working_directory(shared_cowfs: Cowfs, place: Path) -> None:
    (place / "a").touch()
    (place / "b").touch()
    found = told(shared_cowfs, "a", cwd=place)
    assert [row["path"] for story in found for row in story["paths"]] == [f"{place.name}/a"]
    error = shared_cowfs.fails("changes", "/", cwd=place)
    assert error["code"] == "COWFS_USAGE"


def test_nothing_is_known_of_it(shared_cowfs: Cowfs, place: Path) -> None:
    assert shared_cowfs.says("changes", place / "never").strip() == "no changes are known"


def test_names_are_escaped_and_kept(shared_cowfs: Cowfs, place: Path) -> None:
    name = os.fsencode(place) + b"/\x1b[2J\xff"
    os.close(os.open(name, os.O_CREAT | os.O_WRONLY))
    story = last(shared_cowfs, place)
    assert os.fsencode(story["paths"][-1]["path"]) == os.fsencode(place.name) + b"/\x1b[2J\xff"
    assert "\x1b" not in shared_cowfs.says("changes", place)


def test_following(shared_cowfs: Cowfs, place: Path) -> None:
    follower = shared_cowfs.start(
        "changes", "--json", "--follow", "-n", "1", place, stdout=subprocess.PIPE
    )
    try:
        assert follower.stdout is not None
        first = json.loads(follower.stdout.readline())
        assert first["change"]["paths"][0]["path"] == place.name
        (place / "new").touch()
        second = json.loads(follower.stdout.readline())
        assert paths(second["change"], place) == ["new"]
    finally:
        follower.send_signal(signal.SIGINT)
        follower.wait(20)
        assert follower.stdout is not None
        follower.stdout.close()
    assert follower.returncode == 130


# -- restores, lives ------------------------------------------------------------------------


def test_restores_are_of_who_asked(cowfs: Cowfs, mounted: Path) -> None:
    one = cowfs.ok("checkpoint")["checkpoint"]["id"]
    (mounted / "readme").write_text("changed")
    cowfs.ok("restore", one)
    cowfs.ok("undo")
    cowfs.ok("restore", one, "readme")
    found = [s for s in told(cowfs) if s["checkpoint"]]
    assert [s["operation"] for s in found] == ["restored", "undid", "restored"]
    assert [s["paths"][0]["path"] for s in found] == [".", ".", "readme"]
    assert found[0]["checkpoint"] == one
    assert {s["process"]["uid"] for s in found} == {os.geteuid()}
    assert all(s["process"]["parents"][0]["pid"] == os.getpid() for s in found)
    assert f"restored everything to {one[:8]}" in found[0]["text"]


def test_unmounted_and_mounted_again(cowfs: Cowfs, mounted: Path) -> None:
    (mounted / "one").touch()
    cowfs.ok("unmount", mounted, cwd=cowfs.top)
    before = told(cowfs)
    assert [row["path"] for row in before[-1]["paths"]] == ["one"]
    (mounted / "readme").write_text("by hand")
    cowfs.ok("mount", mounted, cwd=cowfs.top)
    (mounted / "readme").read_text()
    (mounted / "two").touch()
    *rest, outside, two = told(cowfs)
    assert rest == before
    assert (outside["process"]["kind"], outside["operation"]) == ("outside", "changed")
    assert outside["text"] == "somebody outside changed readme"
    assert (two["process"]["pid"], two["operation"]) == (os.getpid(), "made")


def test_after_a_crash_it_tells_of_what_is_there(cowfs: Cowfs, mounted: Path) -> None:
    """Each name that is there is told of as made, and no other one, but for what a group that
    was lost had."""
    with child_process(["sleep", "60"]):
        for number in range(200):
            (mounted / f"f{number}").touch()
            if number == 150:
                os.sync()
                cowfs.ok("status")
        ((_, store),) = cowfs.mounts()
        cowfs.kill(store)
    cowfs.ok("mount", mounted, cwd=cowfs.top)
    there = {path.name for path in mounted.iterdir() if path.name.startswith("f")}
    made = {row["path"] for s in told(cowfs, "-n", "0") for row in s["paths"]}
    assert there == {name for name in made if name.startswith("f")}


# -- blame ----------------------------------------------------------------------------------


def test_blame(shared_cowfs: Cowfs, place: Path) -> None:
    shell("printf 'one\\ntwo\\n' > f", place)
    first = shared_cowfs.ok("checkpoint")["checkpoint"]["id"]
    run("chmod", "600", "f", cwd=place)
    run("mv", "f", "g", cwd=place)
    shared_cowfs.ok("checkpoint")
    answer = shared_cowfs.ok("blame", place / "g")
    assert (answer["checkpoint"], answer["process"]["name"]) == (first, "bash")
    run("sed", "-i", "s/two/2/", "g", cwd=place)
    answer = shared_cowfs.ok("blame", "g", cwd=place)
    assert (answer["checkpoint"], answer["process"]["name"]) == ("@", "sed")
    assert "`sed -i s/two/2/ g`" in shared_cowfs.says("blame", place / "g")


def test_blame_by_line(shared_cowfs: Cowfs, place: Path) -> None:
    """Through a rename, files that took its place, and lines that moved."""
    shell("printf 'one\\ntwo\\nthree\\n' > f", place)
    first = shared_cowfs.ok("checkpoint")["checkpoint"]["id"]
    run("mv", "f", "g", cwd=place)
    run("sed", "-i", "s/two/2/", "g", cwd=place)
    second = shared_cowfs.ok("checkpoint")["checkpoint"]["id"]
    shell("printf 'zero\\n' | cat - g > h && mv h g", place)
    rows = shared_cowfs.ok("blame", "--lines", place / "g")["lines"]
    assert [(row["text"], row["checkpoint"]) for row in rows] == [
        ("zero", "@"),
        ("one", first),
        ("2", second),
        ("three", first),
    ]
    assert [row["process"]["name"] for row in rows] == ["cat", "bash", "sed", "bash"]
    text = shared_cowfs.says("blame", "--lines", place / "g").splitlines()
    assert [line.split()[-1] for line in text] == ["zero", "one", "2", "three"]
    assert text[1].startswith(first[:8])


def test_blame_of_what_was_there_before(shared_cowfs: Cowfs, workspace: Path) -> None:
    answer = shared_cowfs.ok("blame", workspace / "src" / "main.c")
    assert (answer["epoch"], answer["process"]) == (0, None)
    assert "before the first mount" in shared_cowfs.says("blame", workspace / "src" / "main.c")


def test_blame_after_a_restore_of_the_file(cowfs: Cowfs, mounted: Path) -> None:
    one = cowfs.ok("checkpoint")["checkpoint"]["id"]
    (mounted / "readme").write_text("changed\n")
    cowfs.ok("checkpoint")
    cowfs.ok("restore", one, "readme")
    answer = cowfs.ok("blame", "readme")
    assert answer["checkpoint"] == "@"
    assert "restore" in answer["process"]["command"]


def test_blame_of_what_has_no_lines(shared_cowfs: Cowfs, place: Path) -> None:
    (place / "binary").write_bytes(b"\0\1\2")
    assert shared_cowfs.ok("blame", place / "binary")["checkpoint"] == "@"
    assert shared_cowfs.fails("blame", "--lines", place / "binary")["code"] == "COWFS_NOT_TEXT"
    assert shared_cowfs.fails("blame", "--lines", place)["code"] == "COWFS_NOT_TEXT"
    assert shared_cowfs.fails("blame", place / "nothing")["code"] == "COWFS_UNKNOWN_PATH"
