"""Large trees: what did not change costs nothing.

There is no clock here. What a restore or a checkpoint wrote is counted, and must be what the same
step writes in a tree of three files.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cases.conftest import commands
from tests.cases.workspace import Workspace, git, repository, shell
from tests.cli.command import Cowfs
from tests.mount.calls import write_file
from tests.tools.tool import environment, need, run

FILES, DIRECTORIES = 10_000, 50
OUTPUT, OUTPUT_SIZE = 15, 4 << 20
"""Files of build output, bytes of each."""
MODULES = 1_000
UNITS = 20

_PROJECT = """
all: $(patsubst %.c,%.o,$(wildcard *.c))
%.o: %.c
\t@cp $< $@
\t@echo built $<
"""


Stamps = dict[str, tuple[int, ...]]


def edit(space: Workspace) -> None:
    """A change of one line, never the same twice."""
    with open(space.top / "d000/f000", "a") as file:
        file.write(f"one more line, {os.urandom(8).hex()}\n")


def stamps(top: Path) -> Stamps:
    """By path below `top` what every build and every backup looks at."""
    found: Stamps = {}
    for directory, names, files in os.walk(top):
        for name in [".", *names, *files]:
            path = os.path.join(directory, name)
            st = os.lstat(path)
            relative = os.path.normpath(os.path.relpath(path, top))
            found[relative] = (
                st.st_ino,
                st.st_mode,
                st.st_nlink,
                st.st_size,
                st.st_mtime_ns,
                st.st_ctime_ns,
            )
    return found


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workspace]:
    """A project of 10,000 files, with 60 MB of output that git ignores, and modules."""
    with commands(tmp_path_factory.mktemp("large")) as cowfs:
        base = repository(cowfs.top / "project")
        write_file(base / ".gitignore", b"target\nnode_modules\nbuild\nd*\n")
        git(base, "add", ".")
        git(base, "commit", "-qm", "ignore")
        for directory in range(DIRECTORIES):
            place = base / f"d{directory:03}"
            place.mkdir()
            for number in range(FILES // DIRECTORIES):
                (place / f"f{number:03}").write_text(f"line {number}\n")
        (base / "target").mkdir()
        for number in range(OUTPUT):
            write_file(base / f"target/output{number}", os.urandom(OUTPUT_SIZE))
        for number in range(MODULES):
            place = base / f"node_modules/m{number // 10}/lib"
            place.mkdir(parents=True, exist_ok=True)
            write_file(place / f"f{number}.js", b"module %d\n" % number)
        yield opened(cowfs, base)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workspace]:
    """A project of three files."""
    with commands(tmp_path_factory.mktemp("small")) as cowfs:
        base = cowfs.top / "project"
        (base / "d000").mkdir(parents=True)
        write_file(base / "d000/f000", b"line 0\n")
        write_file(base / "other", b"other\n")
        write_file(base / "third", b"third\n")
        yield opened(cowfs, base)


def opened(cowfs: Cowfs, base: Path) -> Workspace:
    space = Workspace(cowfs, base)
    space.wait_until_imported()
    space.checkpoint("--label", "start")
    return space


def written_by_checkpoint(space: Workspace) -> Counter[str]:
    """Records that a checkpoint adds after a change of one line."""
    edit(space)
    before = space.records()
    space.checkpoint()
    return space.records() - before


def written_by_restore(space: Workspace) -> Counter[str]:
    """Records that a restore adds which takes back a change of one line; nothing else changes."""
    content = (space.top / "d000/f000").read_bytes()
    first, here = stamps(space.top), space.checkpoint()
    edit(space)
    before = space.records()
    answer = space.run("restore", here)
    added = space.records() - before
    assert answer["changed"] == 1
    assert (space.top / "d000/f000").read_bytes() == content
    assert stamps(space.top) == first
    return added


def test_case_05_ignored_output(large: Workspace) -> None:
    """Much untracked, ignored output lies in the tree, made before the checkpoint and after the
    mount; a restore after unrelated edits."""
    made = os.urandom(OUTPUT_SIZE)
    (large.top / "build").mkdir()
    write_file(large.top / "build/output", made)
    first, here = stamps(large.top), large.checkpoint()
    blocks = large.records()["block"]
    edit(large)
    (large.top / "unrelated").write_text("x")
    large.restore(here)
    assert stamps(large.top) == first
    assert (large.top / "build/output").read_bytes() == made
    assert large.records()["block"] <= blocks + 2, "the two edits, nothing of the output"


def test_case_06_one_line_of_a_large_tree(large: Workspace, small: Workspace) -> None:
    """10,000 files, a change of one line, restore: one file changes, and what is written does not
    depend on the others."""
    assert written_by_restore(large) == written_by_restore(small)


def test_case_10_make_after_a_restore(large: Workspace) -> None:
    """Restore when one of many files changed, then make."""
    need("make")
    place = large.top / "d001"
    write_file(place / "Makefile", _PROJECT.encode())
    for number in range(UNITS):
        write_file(place / f"u{number}.c", b"%d" % number)
    env = environment(large.top)

    def make() -> list[str]:
        return run(["make", "-j4"], place, env).splitlines()

    def built() -> list[str]:
        return [line for line in make() if line.startswith("built ")]

    assert len(built()) == UNITS
    first, here = stamps(large.top), large.checkpoint()
    write_file(place / "u3.c", b"edited")
    assert built() == ["built u3.c"]
    edited = large.checkpoint()
    large.restore(here)
    assert stamps(large.top) == first
    assert built() == []
    # A source alone that comes with the time of its edit is all that is built.
    large.restore(edited, "d001/u3.c")
    assert built() == ["built u3.c"]
    after = stamps(large.top)
    touched = {path for path in first if first[path] != after[path]}
    assert touched == {"d001/u3.c", "d001/u3.o"}


def test_case_15_a_checkpoint_of_a_large_tree(large: Workspace, small: Workspace) -> None:
    """Large assets, thousands of ignored files, a prompt arrives: the checkpoint writes what it
    writes in a small tree."""
    assert written_by_checkpoint(large) == written_by_checkpoint(small)


def test_case_21_modules_deleted(large: Workspace) -> None:
    """Delete a large `node_modules`; `git status` afterwards. (The speed has benchmarks.)"""
    assert git(large.top, "status", "--porcelain") == ""
    first, here = stamps(large.top), large.checkpoint()
    blocks = large.records()["block"]
    shell(large.top, "rm -rf node_modules")
    assert not (large.top / "node_modules").exists()
    (large.top / "node_modules").mkdir()
    assert os.listdir(large.top / "node_modules") == []
    large.restore(here)
    assert large.records()["block"] == blocks, "what was deleted was not copied"
    assert git(large.top, "status", "--porcelain") == ""
    # git makes its lock in .git; that it did not write the index shows that it was up to date.
    found = stamps(large.top)
    assert {path for path in first if first[path] != found.get(path)} <= {".git"}
    assert first.keys() == found.keys()
    assert (large.top / "node_modules/m0/lib/f0.js").read_bytes() == b"module 0\n"


def test_case_25_reading_records_nothing(large: Workspace) -> None:
    """A program only reads: nothing is copied or recorded as changed."""
    large.checkpoint()
    before = large.records()
    shell(large.top, "cat d0?0/f* target/* node_modules/*/*/* > /dev/null; ls -lR > /dev/null")
    assert large.counts() == {"created": 0, "modified": 0, "deleted": 0}
    assert large.diff() == []
    assert large.records() == before
