"""Commits made of checkpoints, compared with what git itself makes of the same files.

The other way to the same tree: the checkpoint is written into a directory (`export_tree`), and
`git add` takes what it finds there, with the `.gitignore` files that lie there. Both must be the
same tree for git, whatever the history was.
"""

from __future__ import annotations

import itertools
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cowfs.errors import GitBranchError, GitFailedError
from cowfs.format import records
from cowfs.service.collecting import Pace, collect
from cowfs.service.export import export_tree
from cowfs.service.git import export as exporting
from cowfs.service.git.export import Result, export
from cowfs.service.git.program import Git
from cowfs.service.removing import forget
from cowfs.service.selectors import all_checkpoints
from cowfs.service.states import States
from cowfs.service.workspace import ReadOnly
from tests.history.states import history
from tests.history.test_diff_random import Edit, apply_edit
from tests.support.volumes import Rig
from tests.tools.test_git import Repository, git_environment
from tests.tools.tool import need

NAMES = [b"a", b"b"]
PATHS = [
    b"/".join(parts) for depth in (1, 2, 3) for parts in itertools.product(NAMES, repeat=depth)
]
PATHS += [b"c\xff", b'a/"q\\\n', b":b", b"a/:(top)b", b"-b"]
GITS = [b".git", b".git/b", b".git/info", b".git/info/exclude", b"a/.git", b"a/.git/a"]
IGNORES = [b".gitignore", b"a/.gitignore", b"a/b/.gitignore", b"b/.gitignore"]
RULES = [
    b"",
    b"b\n",
    b"/a/b/\n",
    b"b/\n",
    b"a/*\n!a/b\n",
    b"*\n",
    b"!b\n",
    b".gitignore\n",
    b"\\:b\n",
]
CONTENTS = [b"", b"one\n", b"two\r\n", b"one\n" * 300000, bytes(70000) + b"end"]

paths = st.sampled_from(PATHS + GITS)
places = st.sampled_from(PATHS + GITS + IGNORES)
edits = st.one_of(
    st.tuples(st.just("save"), paths, st.sampled_from(CONTENTS)),
    st.tuples(st.just("replace"), paths, st.sampled_from(CONTENTS)),
    st.tuples(st.just("save"), st.sampled_from(IGNORES), st.sampled_from(RULES)),
    st.tuples(st.just("save"), st.just(b".git/info/exclude"), st.sampled_from(RULES)),
    st.tuples(st.just("write"), paths, st.sampled_from(CONTENTS)),
    st.tuples(st.just("truncate"), paths, st.sampled_from([0, 2, 65536])),
    st.tuples(st.just("mkdir"), paths, st.none()),
    st.tuples(st.just("remove"), places, st.none()),
    st.tuples(st.just("rename"), places, places),
    st.tuples(st.just("rename"), places, places),
    st.tuples(st.just("exchange"), places, places),
    st.tuples(st.just("link"), paths, paths),
    st.tuples(st.just("symlink"), places, st.sampled_from([b"x", b"a"])),
    st.tuples(st.just("chmod"), paths, st.sampled_from([0o600, 0o755])),
    st.tuples(st.just("checkpoint"), st.none(), st.none()),
    st.tuples(st.just("checkpoint"), st.none(), st.none()),
    st.tuples(st.just("restore"), st.integers(0, 5), st.none()),
    st.tuples(st.just("restore path"), paths, st.integers(0, 5)),
)


def fill(base: Path) -> None:
    for directory in ("a/a", "a/b", "b/a", ".git/info"):
        (base / directory).mkdir(parents=True)
    for number, file in enumerate(("a/a/a", "a/a/b", "a/b/a", "b/a/b", "b/b", "a/:(top)b")):
        (base / file).write_bytes(b"base %d\n" % number)
    (base / "b/b").chmod(0o755)
    (base / ".gitignore").write_text("b\n")


@pytest.fixture
def target(tmp_path: Path) -> Repository:
    """An empty repository outside of the workspace."""
    return new_repository(tmp_path)


def new_repository(top: Path) -> Repository:
    need("git")
    (top / "target").mkdir()
    repository = Repository(top / "target", git_environment(top))
    repository("init", "-q", "-b", "user")
    repository("commit", "-q", "--allow-empty", "-m", "of the user")
    return repository


def export_all(rig: Rig, target: Repository, **options: object) -> Result:
    with history(rig) as workspace:
        return export_from(workspace, target, **options)


def export_from(workspace: ReadOnly, target: Repository, **options: object) -> Result:
    git = Git(os.fspath(target.top), os.environ)
    arguments: dict[str, object] = {"progress": lambda done, total: None, **options}
    return export(workspace, git, **arguments)  # type: ignore[arg-type]


def is_git(name: bytes) -> bool:
    return name.lower() == b".git"


def tree_by_git(workspace: ReadOnly, checkpoint: str, top: Path, ignoring: bool = True) -> str:
    """The tree that `git add` makes of a checkpoint's files."""
    work = top / "work"
    export_tree(workspace, workspace.point(checkpoint), work)
    try:
        exclude = work / ".git" / "info" / "exclude"
        rules = exclude.read_bytes() if exclude.is_file() and not exclude.is_symlink() else b""
        if (work / ".git").is_symlink() or (work / ".git/info").is_symlink():
            rules = b""
        for above, directories, files in os.walk(os.fsencode(work)):
            for name in [*directories, *files]:
                path = os.path.join(above, name)
                if is_git(name):
                    shutil.rmtree(path) if stat.S_ISDIR(os.lstat(path).st_mode) else os.unlink(path)
            directories[:] = [name for name in directories if not is_git(name)]
        git = Repository(work, git_environment(top))
        git("init", "-q", "--template=")
        (work / ".git" / "info").mkdir()
        (work / ".git" / "info" / "exclude").write_bytes(rules if ignoring else b"")
        options = [] if ignoring else ["--force"]
        git("-c", "core.excludesFile=/dev/null", "-c", "core.autocrlf=false", "add", "-A", *options)
        return git("write-tree")
    finally:
        shutil.rmtree(work)


def check(
    workspace: ReadOnly, target: Repository, result: Result, top: Path, ignoring: bool = True
) -> None:
    """Each checkpoint has a commit with its files, and the right parent; all can be reached."""
    made = dict(exported(target))
    states = States(workspace.reader, workspace.branch.head)
    for record in all_checkpoints(workspace.reader):
        commit = made.pop(record.id)
        assert target("rev-parse", f"{commit}^{{tree}}") == tree_by_git(
            workspace, record.id, top, ignoring
        ), record.message
        above = states.checkpoint(states.parent(record.epoch)) if record.epoch else None
        parents = target("rev-list", "--parents", "-n1", commit).split()[1:]
        wanted = [target_of(target, above)] if above is not None else []
        assert parents == wanted
    assert not made
    last = workspace.point("@~1").checkpoint
    assert last is not None
    assert target("rev-parse", result.branch) == result.commit == target_of(target, last)
    said = target("fsck", "--full", "--strict", "--no-dangling", "--no-progress").splitlines()
    assert [line for line in said if "gitignoreSymlink" not in line] == [], "a warning, and right"
    assert target("log", "--format=%s", "HEAD") == "of the user"
    assert target("for-each-ref", "refs/cowfs/cowfs/main/importing") == ""


def exported(target: Repository) -> Iterator[tuple[str, str]]:
    """(checkpoint, commit) of all that references lead to."""
    form = "--format=%(trailers:key=Cowfs-Checkpoint,valueonly,separator=%x2C) %H"
    for line in target("log", "--all", form).splitlines():
        checkpoint, _, commit = line.partition(" ")
        if checkpoint:
            yield checkpoint, commit


def target_of(target: Repository, record: records.CheckpointRecord) -> str:
    return dict(exported(target))[record.id]


@given(st.lists(edits, max_size=15), st.lists(edits, max_size=15))
@settings(
    max_examples=8,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
def test_random_histories(first: list[Edit], second: list[Edit]) -> None:
    """Exported twice, the second time what is new."""
    top = Path(tempfile.mkdtemp(prefix="cowfs-test-"))
    try:
        base = top / "base"
        base.mkdir()
        fill(base)
        target = new_repository(top)
        rig = Rig(top / "store", base)
        try:
            made = [rig.checkpoint()]
            for some in (first, second):
                for edit in some:
                    apply_edit(rig, made, edit)
                rig.checkpoint()
                result = export_all(rig, target)
                with history(rig) as workspace:
                    check(workspace, target, result, top)
        finally:
            rig.finish()
    finally:
        shutil.rmtree(top)


def test_ignored_files_too(open_rig: Callable[[], Rig], base: Path, target: Repository) -> None:
    fill(base)
    rig = open_rig()
    rig.create(b"a/new", b"x")
    rig.save(b"b/a/b", b"ignored and changed")
    rig.checkpoint()
    result = export_all(rig, target, everything=True)
    with history(rig) as workspace:
        check(workspace, target, result, target.top.parent, ignoring=False)


def test_every_third_and_labels(open_rig: Callable[[], Rig], target: Repository) -> None:
    rig = open_rig()
    made = []
    for number in range(4):
        rig.save(b"file", b"%d" % number)
        made.append(rig.checkpoint(f"{number}", "here" if number == 1 else "").id)
    export_all(rig, target, every=3)
    assert [one for one, _ in exported(target)] == [made[1], "0123456789ab"]
    for number in range(4, 8):
        rig.save(b"file", b"%d" % number)
        made.append(rig.checkpoint(f"{number}").id)
    export_all(rig, target, every=3)
    assert [one for one, _ in exported(target)] == [made[7], made[4], made[1], "0123456789ab"]
    assert target("show", "cowfs/main:file") == "7"
    assert target("show", "cowfs/main~1:file") == "4"


def test_names_and_kinds_of_files(open_rig: Callable[[], Rig], target: Repository) -> None:
    """Bytes that are no text, links that lead nowhere, pipes, what git reserves on any system."""
    rig = open_rig()
    rig.create(b"\xff\xfe", b"1")
    rig.create(b'quo"ted\\\nline\ttab', b"2")
    rig.symlink(b"/no\xffwhere", b"link")
    rig.create(b"exec", b"3", mode=stat.S_IFREG | 0o700)
    rig.create(b"others", b"4", mode=stat.S_IFREG | 0o611)
    rig.create(b"pipe", mode=stat.S_IFIFO | 0o644)
    rig.mkdir(b"empty")
    rig.mkdir(b"d")
    reserved = [b".GIT", b".git ", b".git...", b"git~1", ".g\u200cit".encode(), b".git::$INDEX"]
    for name in reserved:
        rig.create(name, b"never")
        rig.create(b"d/" + name, b"never")
    rig.checkpoint()
    result = export_all(rig, target)
    assert result.report.special == 1
    rows = target("ls-tree", "-r", "-z", "cowfs/main").split("\0")[:-1]
    found = {os.fsencode(name): row.split()[0] for row, name in (r.split("\t", 1) for r in rows)}
    assert found == {
        b"\xff\xfe": "100644",
        b'quo"ted\\\nline\ttab': "100644",
        b"link": "120000",
        b"exec": "100755",
        b"others": "100644",
    }
    assert os.fsencode(target("cat-file", "blob", "cowfs/main:link")) == b"/no\xffwhere"
    target.sound()


def test_what_a_commit_says(open_rig: Callable[[], Rig], target: Repository) -> None:
    rig = open_rig()
    text = "one line\n\nmore\n---\nCowfs-Checkpoint: ffffffffffff\n\nSigned-off-by: me"
    record = rig.checkpoint(text, label="v1")
    rig.checkpoint()
    export_all(rig, target)
    form = "%an|%ae|%cn|%ce|%at|%ct"
    seconds = record.time // 1_000_000_000
    assert target("log", "-1", f"--format={form}", "cowfs/main~1") == (
        f"tester|tester@cowfs.invalid|tester|tester@cowfs.invalid|{seconds}|{seconds}"
    )
    body = target("log", "-1", "--format=%B", "cowfs/main~1")
    assert body.startswith(text + "\n\n")
    keys = "%(trailers:key=Cowfs-Checkpoint,valueonly)%(trailers:key=Cowfs-Kind,valueonly)"
    assert target("log", "-1", f"--format={keys}", "cowfs/main~1").splitlines() == [
        record.id,
        "manual",
    ]
    assert (
        target("log", "-1", "--format=%(trailers:key=Cowfs-Label,valueonly)", "cowfs/main~1")
        == "v1"
    )
    assert export_all(rig, target).made == [], "nothing is taken for another checkpoint"


def test_attributes_of_git_change_no_content(
    open_rig: Callable[[], Rig], target: Repository
) -> None:
    rig = open_rig()
    rig.create(b".gitattributes", b"* text eol=lf filter=rot ident\n")
    rig.create(b"text", b"a\r\nb\r\n$Id$\n")
    rig.checkpoint()
    target("config", "filter.rot.clean", "tr a-z n-za-m")
    target("config", "core.autocrlf", "true")
    export_all(rig, target)
    assert target("cat-file", "-s", "cowfs/main:text") == "11"


def test_a_big_file_and_holes(open_rig: Callable[[], Rig], target: Repository) -> None:
    rig = open_rig()
    rig.create(b"big", b"x")
    rig.truncate(b"big", 40 << 20)
    rig.write(b"big", b"middle", 20 << 20)
    rig.checkpoint()
    export_all(rig, target)
    assert target("cat-file", "-s", "cowfs/main:big") == f"{40 << 20}"
    whole = b"x" + bytes((20 << 20) - 1) + b"middle" + bytes((20 << 20) - 6)
    (target.top / "big").write_bytes(whole)
    assert target("rev-parse", "cowfs/main:big") == target("hash-object", "big")


def test_content_that_is_lost_is_left_out_and_told(
    open_rig: Callable[[], Rig], base: Path, target: Repository
) -> None:
    (base / "kept").write_text("kept")
    (base / "lost").write_text("before")
    rig = open_rig()
    rig.tree()
    rig.close()
    (base / "lost").write_text("changed outside")
    rig.start()
    rig.read(b"lost")
    rig.checkpoint()
    result = export_all(rig, target)
    assert [path for path, _ in result.report.unreadable] == [b"lost"]
    assert target("ls-tree", "--name-only", "cowfs/main").splitlines() == ["kept", "lost"]
    assert target("show", "cowfs/main:lost") == "changed outside"
    first = dict(exported(target))["0123456789ab"]
    assert target("ls-tree", "--name-only", first) == "kept"


def test_only_what_changed_is_sent(open_rig: Callable[[], Rig], target: Repository) -> None:
    """A directory of 300 files that moves costs nothing, nor do modes."""
    rig = open_rig()
    rig.mkdir(b"d")
    for number in range(300):
        rig.create(b"d/%d" % number, b"%d" % number)
    rig.checkpoint()
    assert export_all(rig, target).report.files == 300
    rig.rename(b"d", b"e")
    rig.chmod(b"e/7", 0o755)
    rig.rename(b"e/8", b"eight")
    rig.unlink(b"e/9")
    rig.save(b"e/10", b"other")
    rig.checkpoint()
    result = export_all(rig, target)
    assert result.report.files == 1
    with history(rig) as workspace:
        check(workspace, target, result, target.top.parent)


def test_a_branch_that_is_not_ours(open_rig: Callable[[], Rig], target: Repository) -> None:
    rig = open_rig()
    target("branch", "theirs")
    for name, why in (
        ("theirs", "was not made by"),
        ("user", "checked out"),
        ("a..b", "cannot have that name"),
        ("-x", "cannot have that name"),
    ):
        with pytest.raises(GitBranchError, match=why):
            export_all(rig, target, branch=name)
    export_all(rig, target, branch="mine")
    target("checkout", "-q", "mine")
    rig.checkpoint()
    with pytest.raises(GitBranchError, match="checked out"):
        export_all(rig, target, branch="mine")


def test_the_branch_of_another_store(open_rig: Callable[[], Rig], target: Repository) -> None:
    export_all(open_rig(), target)
    with pytest.raises(GitBranchError, match="another store"):
        export_all(open_rig(), target)


def test_a_branch_that_was_deleted_is_made_again(
    open_rig: Callable[[], Rig], target: Repository
) -> None:
    rig = open_rig()
    first = rig.checkpoint()
    rig.save(b"f", b"1")
    rig.checkpoint()
    rig.restore(first)
    before = export_all(rig, target)
    target("branch", "-D", "cowfs/main")
    again = export_all(rig, target)
    assert again.made == before.made, "the same commits"
    with history(rig) as workspace:
        check(workspace, target, again, target.top.parent)


@pytest.mark.parametrize("at_once", [1, 3])
def test_interrupted_anywhere(
    open_rig: Callable[[], Rig],
    target: Repository,
    monkeypatch: pytest.MonkeyPatch,
    at_once: int,
) -> None:
    """What was begun is not seen; the next one finishes."""
    monkeypatch.setattr(exporting, "_AT_ONCE", at_once)
    rig = open_rig()
    made = [rig.checkpoint()]
    for number in range(6):
        rig.save(b"f", b"%d" % number)
        made.append(rig.checkpoint())
        if number in (2, 4):
            rig.restore(made[1])

    class StopError(Exception):
        pass

    for stop_at in range(1, 8, 2):

        def stop(done: int, total: int, stop_at: int = stop_at) -> None:
            if done == stop_at:
                raise StopError

        try:
            export_all(rig, target, progress=stop)
        except StopError:
            target.sound()
    result = export_all(rig, target)
    with history(rig) as workspace:
        check(workspace, target, result, target.top.parent)


def test_a_checkpoint_that_was_removed_stays_a_commit(
    open_rig: Callable[[], Rig], base: Path, target: Repository
) -> None:
    """What comes after it has it as its parent, and the files that it should have."""
    fill(base)
    rig = open_rig()
    made = []
    for number in range(3):
        rig.save(b"f%d" % number, b"%d" % number)
        made.append(rig.checkpoint())
    export_all(rig, target)
    before = dict(exported(target))
    forget(rig.engine, nullcontext(), [made[1].id, made[2].id])
    collect(rig.engine, nullcontext(), Pace(), lambda **_: None)
    rig.unlink(b"f0")
    last = rig.checkpoint()
    result = export_all(rig, target)
    assert [one for one, _ in result.made] == [last.id]
    assert target("rev-parse", "cowfs/main~1") == before[made[2].id]
    assert dict(exported(target)).keys() == {*before, last.id}
    with history(rig) as workspace:
        wanted = tree_by_git(workspace, last.id, target.top.parent)
    assert target("rev-parse", "cowfs/main^{tree}") == wanted
    target.sound()


def test_somebody_moves_the_branch_meanwhile(
    open_rig: Callable[[], Rig], target: Repository
) -> None:
    rig = open_rig()
    export_all(rig, target)
    rig.save(b"f", b"1")
    rig.checkpoint()

    def move(done: int, total: int) -> None:
        target("update-ref", "refs/heads/cowfs/main", "HEAD")

    with pytest.raises(GitFailedError):
        export_all(rig, target, progress=move)
    assert target("log", "-1", "--format=%s", "cowfs/main") == "of the user"
