"""The patch of a diff, applied by git and by GNU patch to exported trees."""

from __future__ import annotations

import shutil
import stat
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cowfs.service.diff import diff
from cowfs.service.textdiff import patch
from cowfs.tree import patch as patching
from cowfs.volume import namespace
from tests.history.patching import check_patch, files_of, git, gnu_patch, text_of
from tests.history.states import history
from tests.history.test_diff_random import Edit, apply_edit, edits, fill
from tests.support.volumes import Rig

OpenRig = Callable[[], Rig]

pytestmark = pytest.mark.skipif(
    not (shutil.which("git") and shutil.which("patch")), reason="needs git and patch"
)


@pytest.fixture
def rig(open_rig: OpenRig, base: Path) -> Rig:
    (base / "d/sub").mkdir(parents=True)
    (base / "d/sub/deep").write_text("deep\n")
    (base / "d/one").write_text("".join(f"{n}\n" for n in range(100)))
    (base / "d/two").write_text("two\n")
    (base / "file").write_text("line\n" * 10)
    (base / "program").write_text("#!/bin/sh\n")
    (base / "program").chmod(0o755)
    (base / "link").symlink_to("file")
    (base / "picture").write_bytes(bytes(range(256)) * 10)
    return open_rig()


def check(rig: Rig, edit: Callable[[], object], top: Path, *, gnu: bool = True) -> bytes:
    """The patch of one edit, checked with the tools."""
    a = rig.checkpoint()
    edit()
    with history(rig) as workspace:
        return check_patch(workspace, workspace.point(a.id), workspace.point("@"), top, gnu=gnu)


def test_modified(rig: Rig, tmp_path: Path) -> None:
    def edit() -> None:
        lines = [b"%d\n" % n for n in range(100)]
        del lines[3]
        lines[50:50] = [b"new\n", b"lines\n"]
        lines[-1] = b"last"
        rig.save(b"d/one", b"".join(lines))

    text = check(rig, edit, tmp_path)
    assert text == (
        b"diff --git a/d/one b/d/one\n"
        b"--- a/d/one\n"
        b"+++ b/d/one\n"
        b"@@ -1,7 +1,6 @@\n 0\n 1\n 2\n-3\n 4\n 5\n 6\n"
        b"@@ -49,6 +48,8 @@\n 48\n 49\n 50\n+new\n+lines\n 51\n 52\n 53\n"
        b"@@ -97,4 +98,4 @@\n 96\n 97\n 98\n-99\n+last\n\\ No newline at end of file\n"
    )


def test_added_and_deleted(rig: Rig, tmp_path: Path) -> None:
    def edit() -> None:
        rig.create(b"new", b"a\nb\n")
        rig.create(b"tool", b"#!/bin/sh\n", mode=stat.S_IFREG | 0o755)
        rig.create(b"half", b"no newline")
        rig.unlink(b"d/two")

    text = check(rig, edit, tmp_path)
    assert text == (
        b"diff --git a/d/two b/d/two\ndeleted file mode 100644\n"
        b"--- a/d/two\n+++ /dev/null\n@@ -1 +0,0 @@\n-two\n"
        b"diff --git a/half b/half\nnew file mode 100644\n"
        b"--- /dev/null\n+++ b/half\n@@ -0,0 +1 @@\n+no newline\n\\ No newline at end of file\n"
        b"diff --git a/new b/new\nnew file mode 100644\n"
        b"--- /dev/null\n+++ b/new\n@@ -0,0 +1,2 @@\n+a\n+b\n"
        b"diff --git a/tool b/tool\nnew file mode 100755\n"
        b"--- /dev/null\n+++ b/tool\n@@ -0,0 +1 @@\n+#!/bin/sh\n"
    )


def test_empty_files(rig: Rig, tmp_path: Path) -> None:
    rig.create(b"empty")
    rig.create(b"empty too")

    def edit() -> None:
        rig.unlink(b"empty")
        rig.unlink(b"empty too")
        rig.create(b"hollow")
        rig.create(b"d/with space")
        rig.save(b"file", b"")

    text = check(rig, edit, tmp_path)
    assert b"diff --git a/hollow b/hollow\nnew file mode 100644\n" in text


def test_modes(rig: Rig, tmp_path: Path) -> None:
    def edit() -> None:
        rig.chmod(b"file", 0o755)
        rig.chmod(b"program", 0o644)
        rig.write(b"program", b"?")

    text = check(rig, edit, tmp_path)
    assert b"old mode 100644\nnew mode 100755\n" in text
    assert b"old mode 100755\nnew mode 100644\n--- a/program" in text


def test_renames(rig: Rig, tmp_path: Path) -> None:
    def edit() -> None:
        rig.rename(b"file", b"d/moved file")
        rig.rename(b"d/one", b"ONE")
        rig.write(b"ONE", b"x", 7)
        rig.rename(b"picture", b"image")
        rig.write(b"image", b"xx", 100)

    # GNU patch knows no binary patches; without them it does the rest.
    text = check(rig, edit, tmp_path, gnu=False)
    assert b'similarity index 100%\nrename from file\nrename to "d/moved file"\n' in text
    assert b"similarity index 98%\nrename from d/one\nrename to ONE\n--- a/d/one" in text


def test_renamed_directory(rig: Rig, tmp_path: Path) -> None:
    def edit() -> None:
        rig.rename(b"d", b"e")
        rig.write(b"e/two", b"x")
        rig.chmod(b"e/sub/deep", 0o755)
        rig.unlink(b"e/one")
        rig.rename(b"e/sub", b"e/bus")

    text = check(rig, edit, tmp_path)
    assert b"rename from d/sub/deep\nrename to e/bus/deep\n" in text
    assert b"deleted file mode 100644\n--- a/d/one" in text


@pytest.mark.parametrize("second", [b"d/two", b"picture", b"link"])
def test_exchange(rig: Rig, tmp_path: Path, second: bytes) -> None:
    check(
        rig,
        lambda: rig.rename(b"file", second, namespace.RENAME_EXCHANGE),
        tmp_path,
        gnu=second != b"picture",
    )


def test_rename_onto_and_away(rig: Rig, tmp_path: Path) -> None:
    def edit() -> None:
        rig.rename(b"file", b"file~")
        rig.create(b"file", b"new\n")
        rig.rename(b"d/one", b"d/two")

    check(rig, edit, tmp_path)


def test_symlinks(rig: Rig, tmp_path: Path) -> None:
    def edit() -> None:
        rig.symlink(b"to a target with spaces", b"new link")
        rig.unlink(b"link")
        rig.symlink(b"elsewhere", b"link")

    text = check(rig, edit, tmp_path)
    assert b"new file mode 120000\n" in text
    assert b"-file\n\\ No newline at end of file\n+elsewhere\n\\ No newline at end of file" in text


def test_types_change(rig: Rig, tmp_path: Path) -> None:
    def edit() -> None:
        rig.unlink(b"file")
        rig.symlink(b"d/one", b"file")
        rig.unlink(b"link")
        rig.create(b"link", b"a file\n")

    check(rig, edit, tmp_path)


def test_files_and_directories_change_places(rig: Rig, tmp_path: Path) -> None:
    def edit() -> None:
        rig.unlink(b"program")
        rig.mkdir(b"program")
        rig.create(b"program/x", b"x\n")
        rig.remove_tree(b"d")
        rig.create(b"d", b"a file now\n")

    check(rig, edit, tmp_path, gnu=False)


def test_binary_files(rig: Rig, tmp_path: Path) -> None:
    def edit() -> None:
        rig.write(b"picture", b"\0\0", 77)
        rig.create(b"new.bin", bytes(range(256)) * 300)
        rig.create(b"short.bin", b"\0")

    text = check(rig, edit, tmp_path, gnu=False)
    assert text.count(b"GIT binary patch\n") == 3
    assert (
        b"index 0000000000000000000000000000000000000000..f76dd238ade08917e6712764a16a22005a5057"
        in text
    )
    a = rig.checkpoint()
    rig.unlink(b"new.bin")
    with history(rig) as workspace:
        check_patch(workspace, workspace.point(a.id), workspace.point("@"), tmp_path, gnu=False)


def test_line_endings_and_encodings(rig: Rig, tmp_path: Path) -> None:
    rig.create(b"dos", b"a\r\nb\r\nc\r\n")
    rig.create(b"latin", b"caf\xe9\nth\xe9\n")
    rig.create(b"odd", b"a\rb\x0c\n\x1b[0m\n \t \n")

    def edit() -> None:
        rig.save(b"dos", b"a\r\nB\r\nc\r\n")
        rig.save(b"latin", b"caf\xe9\nTH\xc9\n")
        rig.save(b"odd", b"a\rB\x0c\n\x1b[1m\n \t \n\n")
        rig.create(b"new dos", b"1\r\n2")

    check(rig, edit, tmp_path)


def test_names_are_quoted_as_git_does(rig: Rig, tmp_path: Path) -> None:
    names = [
        b"with space",
        b" lead",
        b"trail ",
        b'quote"d',
        b"back\\slash",
        b"tab\there",
        b"new\nline",
        b"caf\xe9",
        "\u00fcml\u00e4ut".encode(),
        b"-dash",
        b"\x01\x7f",
    ]

    def edit() -> None:
        rig.mkdir(b"a dir")
        for name in names:
            rig.create(b"a dir/" + name, b"x\n")

    text = check(rig, edit, tmp_path)
    assert rb'"b/a dir/tab\there"' in text
    assert rb'"b/a dir/caf\351"' in text
    a = rig.checkpoint()
    for name in names:
        rig.rename(b"a dir/" + name, b"d/" + name)
    rig.write(b"d/with space", b"y")
    with history(rig) as workspace:
        check_patch(workspace, workspace.point(a.id), workspace.point("@"), tmp_path)


def test_what_a_patch_cannot_carry_is_told(rig: Rig) -> None:
    a = rig.checkpoint()
    rig.mkdir(b"empty")
    rig.create(b"pipe", mode=stat.S_IFIFO | 0o600)
    rig.chmod(b"file", 0o600)
    rig.chmod(b"program", 0o644)
    rig.setxattr(b"d/one", b"user.a", b"b")
    rig.chmod(b"d", 0o700)
    rig.create(b"huge")
    rig.truncate(b"huge", 65 << 20)
    with history(rig) as workspace:
        text, omitted = text_of(workspace, workspace.point(a.id), workspace.point("@"))
        assert omitted == [
            (b"d", "mode"),
            (b"d/one", "xattrs"),
            (b"empty", "an empty directory"),
            (b"file", "mode"),
            (b"pipe", "a fifo"),
            (b"huge", "too large or unreadable"),
        ]
        assert text == (
            b"Binary files a/huge and b/huge differ\n"
            b"diff --git a/program b/program\nold mode 100755\nnew mode 100644\n"
        )


def test_a_renamed_directory_that_cannot_be_read(rig: Rig, base: Path) -> None:
    """What is in it is only in the base directory, and was removed there: the rest is told."""
    assert rig.exists(b"d/sub")  # d is listed in the store then, and sub is not
    a = rig.checkpoint()
    rig.rename(b"d", b"e")
    rig.write(b"file", b"L")
    shutil.rmtree(base / "d/sub")
    with history(rig) as workspace:
        text, omitted = text_of(workspace, workspace.point(a.id), workspace.point("@"))
    ((path, why),) = omitted
    assert path == b"e/sub"
    assert "cannot be read" in why
    assert b"rename from d/one\nrename to e/one\n" in text
    assert b"rename from d/two\nrename to e/two\n" in text
    assert b"+++ b/file\n" in text
    assert b"deep" not in text


def test_a_file_that_is_only_named_does_not_stop_the_tools(rig: Rig, tmp_path: Path) -> None:
    a = rig.checkpoint()
    rig.create(b"huge")
    rig.truncate(b"huge", 65 << 20)
    rig.write(b"d/two", b"x")
    rig.write(b"program", b"x")
    with history(rig) as workspace:
        text, _ = text_of(workspace, workspace.point(a.id), workspace.point("@"))
    for name in ("git", "patch"):
        top = tmp_path / name
        shutil.copytree(rig.base or "", top, symlinks=True)
        done = git(top, "apply", stdin=text) if name == "git" else gnu_patch(top, text)
        assert done.returncode == 0, done.stderr
        changed = files_of(top)
        assert changed[b"d/two"] == ("100644", b"xwo\n")
        assert changed[b"program"] == ("100755", b"x!/bin/sh\n")


def test_restricted_patch(rig: Rig) -> None:
    a = rig.checkpoint()
    rig.write(b"file", b"x")
    rig.write(b"d/two", b"x")
    with history(rig) as workspace:
        text, _ = text_of(workspace, workspace.point(a.id), workspace.point("@"), b"d")
        assert text.count(b"diff --git") == 1
        assert b"d/two" in text


def test_git_reads_the_numbers_as_we_count_them(rig: Rig, tmp_path: Path) -> None:
    a = rig.checkpoint()
    rig.save(b"d/one", b"".join(b"%d\n" % n for n in range(0, 120, 3)))
    with history(rig) as workspace:
        one, two = workspace.point(a.id), workspace.point("@")
        changes = diff(workspace, one, two)
        text = b"".join(patch(workspace, one, two, changes))
    added, removed = patching.count_lines(
        b"".join(b"%d\n" % n for n in range(100)), b"".join(b"%d\n" % n for n in range(0, 120, 3))
    )
    numbers = git(tmp_path, "apply", "--numstat", stdin=text).stdout
    assert numbers == b"%d\t%d\td/one\n" % (added, removed)


@given(st.lists(edits, max_size=6), st.lists(edits, min_size=1, max_size=20))
@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
def test_random_edits(first: list[Edit], second: list[Edit]) -> None:
    top = Path(tempfile.mkdtemp(prefix="cowfs-test-"))
    try:
        base = top / "base"
        base.mkdir()
        fill(base)
        rig = Rig(top / "store", base)
        try:
            made = [rig.checkpoint()]
            for edit in first:
                apply_edit(rig, made, edit)
            made.append(a := rig.checkpoint())
            for edit in second:
                apply_edit(rig, made, edit)
            with history(rig) as workspace:
                one, two = workspace.point(a.id), workspace.point("@")
                check_patch(workspace, one, two, top, gnu=False)
        finally:
            rig.finish(check=False)
    finally:
        subprocess.run(["rm", "-rf", "--", top], check=True)


lines = st.lists(st.sampled_from([b"a\n", b"b\n", b"c\n", b"d\r\n", b"\n"]), max_size=40)


@given(lines, lines, st.booleans(), st.booleans())
@settings(max_examples=300, deadline=None)
def test_changed_blocks_lead_from_one_side_to_the_other(
    old: list[bytes], new: list[bytes], cut: bool, cut_new: bool
) -> None:
    one = b"".join(old)[: -1 if cut else None]
    two = b"".join(new)[: -1 if cut_new else None]
    before, after = patching.split_lines(one), patching.split_lines(two)
    assert b"".join(before) == one
    made: list[bytes] = []
    at = 0
    for a, b, c, d in patching.changed_blocks(before, after):
        assert a < b or c < d
        made += before[at:a]
        assert len(made) == c
        made += after[c:d]
        at = b
    assert made + before[at:] == after
    added, removed = patching.count_lines(one, two)
    assert len(before) + added - removed == len(after)
