"""Checkpoints and what is done with them: log, diff, show, restore, undo, redo, export, verify."""

from __future__ import annotations

import base64
import io
import os
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command import Cowfs
from tests.support.listing import difference, listing, portable

CHECKPOINT = {
    "id",
    "epoch",
    "branch",
    "kind",
    "time",
    "message",
    "label",
    "uid",
    "user",
    "pid",
    "command",
    "target",
    "counts",
    "git",
    "pinned",
    "note",
    "session",
    "thinned",
}


@pytest.fixture
def place(workspace: Path, request: pytest.FixtureRequest) -> Path:
    """A directory of the shared workspace for one test, with two files."""
    top = workspace / str(request.node.name)
    top.mkdir()
    (top / "a").write_text("one\ntwo\n")
    (top / "b").write_bytes(b"\0binary")
    return top


def checkpoint(cowfs: Cowfs, *arguments: str) -> str:
    answer = cowfs.ok("checkpoint", *arguments)
    return str(answer["checkpoint"]["id"])


def changes(document: dict[str, Any]) -> list[tuple[str, str]]:
    return [(change["status"], change["path"]) for change in document["changes"]]


# -- checkpoint and log ---------------------------------------------------------------------


def test_a_checkpoint(shared_cowfs: Cowfs, place: Path) -> None:
    answer = shared_cowfs.ok("checkpoint", "-m", "a message", "--label", "a-label")
    record = answer["checkpoint"]
    assert record.keys() == CHECKPOINT
    assert len(record["id"]) == 12
    assert (record["message"], record["label"], record["kind"]) == (
        "a message",
        "a-label",
        "manual",
    )
    assert record["counts"] == {"created": 3, "modified": 0, "deleted": 0}
    assert record["uid"] == os.getuid()
    assert 0 < answer["daemon_seconds"] < 10
    (place / "a").unlink()
    said = shared_cowfs.says("checkpoint")
    assert said.startswith("checkpoint ")
    assert said.endswith(": 1 deleted\n")


def test_the_log(shared_cowfs: Cowfs, place: Path) -> None:
    one = checkpoint(shared_cowfs, "-m", "first\nmore", "--label", "log-test")
    two = checkpoint(shared_cowfs, "-m", "sec\x1bond")
    document = shared_cowfs.ok("log", "-n", "2")
    rows = document["checkpoints"]
    assert [row["id"] for row in rows] == [two, one]
    assert rows[0].keys() >= (CHECKPOINT - {"branch", "pinned", "note"}) | {"parent", "current"}
    assert rows[0]["parent"] == one
    assert [row["current"] for row in rows] == [True, False]
    assert rows[1]["message"] == "first\nmore"
    assert document["head"]["id"] == "@"
    assert document["total"] > 2
    lines = shared_cowfs.says("log", "-n", "2").splitlines()
    assert lines[0].startswith("@")
    assert two[:8] in lines[1]
    assert "sec\\x1bond" in lines[1]
    assert lines[2].endswith("(log-test) first")
    assert "older" in lines[3]
    assert len(shared_cowfs.ok("log", "-n", "0")["checkpoints"]) == document["total"]


def test_the_log_draws_where_a_restore_went_back(cowfs: Cowfs, mounted: Path) -> None:
    one = checkpoint(cowfs)
    (mounted / "new").write_text("x")
    two = checkpoint(cowfs)
    cowfs.ok("restore", one)
    lines = cowfs.says("log").splitlines()
    assert [line.split("  ")[0] for line in lines] == ["@", "| o", "| o", "|/", "*", "o"]
    assert two[:8] in lines[2]
    assert one[:8] in lines[4]


# -- diff -----------------------------------------------------------------------------------


def test_diff_since_the_last_checkpoint(shared_cowfs: Cowfs, place: Path) -> None:
    name = place.name
    one = checkpoint(shared_cowfs)
    (place / "a").rename(place / "c")
    (place / "b").unlink()
    os.mkdir(os.fsencode(place) + b"/caf\xe9")
    document = shared_cowfs.ok("diff")
    assert (document["a"], document["b"]) == (one, "@")
    assert changes(document) == [
        ("D", f"{name}/b"),
        ("R", f"{name}/c"),
        ("A", f"{name}/caf\udce9"),
    ]
    assert document["changes"][1]["old_path"] == f"{name}/a"
    raw = shared_cowfs.run("diff").raw
    assert raw == os.fsencode(f"D  {name}/b\nR  {name}/a -> {name}/c\nA  {name}/caf\udce9/\n")
    raw = shared_cowfs.run("diff", "--json").raw
    assert b'caf\\udce9"' in raw
    assert raw.isascii()


def test_diff_between_two_and_of_some_paths(shared_cowfs: Cowfs, place: Path) -> None:
    name = place.name
    one = checkpoint(shared_cowfs, "--label", "diff-one")
    (place / "a").write_text("one\nthree\n")
    two = checkpoint(shared_cowfs)
    (place / "b").unlink()
    assert changes(shared_cowfs.ok("diff", "diff-one", two[:6])) == [("M", f"{name}/a")]
    assert changes(shared_cowfs.ok("diff", two, one)) == [("M", f"{name}/a")]
    assert changes(shared_cowfs.ok("diff", one)) == [("M", f"{name}/a"), ("D", f"{name}/b")]
    assert changes(shared_cowfs.ok("diff", one, name + "/b")) == [("D", f"{name}/b")]
    assert changes(shared_cowfs.ok("diff", one, "b", "a", cwd=place)) == [
        ("M", f"{name}/a"),
        ("D", f"{name}/b"),
    ]
    assert changes(shared_cowfs.ok("diff", "--", name)) == [("D", f"{name}/b")]
    assert changes(shared_cowfs.ok("diff", one, "--", "a", cwd=place)) == [("M", f"{name}/a")]
    assert changes(shared_cowfs.ok("diff", one, two, str(place))) == [("M", f"{name}/a")]


def test_a_path_that_looks_like_a_checkpoint(shared_cowfs: Cowfs, place: Path) -> None:
    one = checkpoint(shared_cowfs)
    (place / one[:8]).write_text("x")
    (place / "c").write_text("x")
    assert len(shared_cowfs.ok("diff", one[:8], cwd=place)["changes"]) == 2
    assert changes(shared_cowfs.ok("diff", "--", one[:8], cwd=place)) == [
        ("A", f"{place.name}/{one[:8]}")
    ]


def test_diff_stat(shared_cowfs: Cowfs, place: Path) -> None:
    checkpoint(shared_cowfs)
    (place / "a").write_text("one\nthree\nfour\n")
    (place / "b").write_bytes(b"\0other binary")
    rows = shared_cowfs.ok("diff", "--stat")["changes"]
    assert [(row["added"], row["removed"]) for row in rows] == [(2, 1), (None, None)]
    lines = shared_cowfs.says("diff", "--stat").splitlines()
    assert lines[0] == f" {place.name}/a |     3 ++-"
    assert lines[1] == f" {place.name}/b | binary 7 B -> 13 B"
    assert lines[2] == "2 modified; 2 lines added, 1 removed"


def test_a_patch_applies(shared_cowfs: Cowfs, place: Path) -> None:
    name = place.name
    checkpoint(shared_cowfs)
    other = shared_cowfs.top / "patched"
    other.mkdir()
    (other / name).mkdir()
    for file in ("a", "b"):
        (other / name / file).write_bytes((place / file).read_bytes())
    (place / "a").write_text("one\nthree\n")
    (place / "b").unlink()
    (place / "c d").write_text("new\n")
    (place / "empty").mkdir()
    result = shared_cowfs.run("diff", "--patch")
    assert "not in the patch" in result.err
    subprocess.run(["git", "apply", "-"], cwd=other, input=result.raw, check=True)
    assert (other / name / "a").read_text() == "one\nthree\n"
    assert (other / name / "c d").read_text() == "new\n"
    assert not (other / name / "b").exists()
    document = shared_cowfs.ok("diff", "--patch")
    assert document["patch"] == result.out
    assert [row["path"] for row in document["omitted"]] == [f"{name}/empty"]


def test_no_changes(shared_cowfs: Cowfs, place: Path) -> None:
    checkpoint(shared_cowfs)
    assert shared_cowfs.ok("diff")["changes"] == []
    assert shared_cowfs.says("diff") == ""
    assert shared_cowfs.says("diff", "--patch") == ""


# -- show and export ------------------------------------------------------------------------


def test_show(shared_cowfs: Cowfs, place: Path) -> None:
    name = place.name
    (place / "link").symlink_to("somewhere")
    one = checkpoint(shared_cowfs, "--label", "show-test")
    (place / "b").write_bytes(b"now")
    (place / "link").unlink()
    assert shared_cowfs.run("show", f"{one[:8]}:{name}/b").raw == b"\0binary"
    assert shared_cowfs.run("show", "show-test:b", cwd=place).raw == b"\0binary"
    assert shared_cowfs.run("show", "@{now}:b", cwd=place).raw == b"\0binary"
    assert shared_cowfs.run("show", f"@:{place}/b").raw == b"now"
    assert shared_cowfs.run("show", "@~1:link", cwd=place).raw == b"somewhere"
    document = shared_cowfs.ok("show", "@~1:../" + name + "/b", cwd=place)
    assert base64.b64decode(document["content"]) == b"\0binary"
    assert document["encoding"] == "base64"
    assert (document["checkpoint"], document["path"]) == (one, f"{name}/b")
    assert (document["type"], document["size"]) == ("file", 7)


def test_export(shared_cowfs: Cowfs, workspace: Path, place: Path) -> None:
    (place / "link").symlink_to("a")
    os.link(place / "a", place / "hard")
    one = checkpoint(shared_cowfs)
    before = portable(listing(workspace))
    (place / "a").write_text("other")
    out = shared_cowfs.top / "exported"
    answer = shared_cowfs.ok("export", one, "../exported")
    assert answer["destination"] == str(out)
    assert answer["problems"] == []
    assert answer["files"] > 2
    assert difference(before, portable(listing(out))) == []
    said = shared_cowfs.says("export", one, shared_cowfs.top / "again")
    assert said.startswith(f"wrote {answer['files']} files in ")


def test_export_as_an_archive(shared_cowfs: Cowfs, place: Path) -> None:
    one = checkpoint(shared_cowfs)
    answer = shared_cowfs.ok("export", one, "../then.tar", "--tar")
    raw = shared_cowfs.run("export", one, "-", "--tar").raw
    for content in (raw, Path(answer["destination"]).read_bytes()):
        with tarfile.open(fileobj=io.BytesIO(content)) as archive:
            file = archive.extractfile(f"./{place.name}/b")
            assert file is not None
            assert file.read() == b"\0binary"


# -- restore, undo, redo --------------------------------------------------------------------


def test_restore_undo_redo(cowfs: Cowfs, mounted: Path) -> None:
    before = listing(mounted)
    one = checkpoint(cowfs, "-m", "good")
    (mounted / "readme").write_text("bad")
    (mounted / "src" / "main.c").unlink()
    (mounted / "new").mkdir()
    after = listing(mounted)

    answer = cowfs.ok("restore", "@~1")
    assert (answer["operation"], answer["checkpoint"]["id"]) == ("restore", one)
    assert answer["rescue"]["kind"] == "rescue"
    assert answer["rescue"].keys() == CHECKPOINT
    assert answer["changed"] > 0
    assert 0 < answer["daemon_seconds"] < 10
    assert difference(before, listing(mounted)) == []

    assert cowfs.ok("undo")["operation"] == "undo"
    assert difference(after, listing(mounted)) == []
    assert cowfs.ok("redo")["operation"] == "redo"
    assert difference(before, listing(mounted)) == []
    assert cowfs.fails("redo")["code"] == "COWFS_NOTHING_TO_UNDO"
    lines = cowfs.says("undo").splitlines()
    assert lines[0].startswith("undo: restored ")
    assert "`cowfs redo`" in lines[1]
    lines = cowfs.says("restore", one[:4]).splitlines()
    assert lines[0].startswith(f"restored {one[:8]} (good): ")
    assert "`cowfs undo`" in lines[1]


def test_restore_of_paths(shared_cowfs: Cowfs, place: Path) -> None:
    checkpoint(shared_cowfs)
    (place / "a").unlink()
    (place / "b").unlink()
    (place / "new").write_text("x")
    shared_cowfs.ok("restore", "@~1", "a", cwd=place)
    assert (place / "a").read_text() == "one\ntwo\n"
    assert not (place / "b").exists()
    # The newest checkpoint is the rescue of the state before now.
    shared_cowfs.ok("restore", "@~2", ".", "--exclude", "new", cwd=place)
    assert (place / "b").exists()
    assert (place / "new").exists()


def test_a_preview_changes_nothing(shared_cowfs: Cowfs, place: Path) -> None:
    name = place.name
    one = checkpoint(shared_cowfs)
    (place / "a").unlink()
    (place / "sub").mkdir()
    (place / "sub" / "x.log").write_text("x")
    total = shared_cowfs.ok("log")["total"]
    document = shared_cowfs.ok("restore", one, "--dry-run")
    assert document["dry_run"] is True
    assert document["checkpoint"]["id"] == one
    assert document["rescue"] is None
    assert changes(document) == [
        ("A", f"{name}/a"),
        ("D", f"{name}/sub"),
        ("D", f"{name}/sub/x.log"),
    ]
    document = shared_cowfs.ok("restore", one, "--dry-run", "--exclude", "su?", "--exclude", "z")
    assert changes(document) == [("A", f"{name}/a")]
    document = shared_cowfs.ok("restore", one, "sub", "--dry-run", cwd=place)
    assert changes(document) == [("D", f"{name}/sub"), ("D", f"{name}/sub/x.log")]
    said = shared_cowfs.says("restore", one, "--dry-run").splitlines()
    assert said[0] == f"would restore {one[:8]}: 3 changes"
    assert said[1] == f"A  {name}/a"
    assert not (place / "a").exists()
    assert shared_cowfs.ok("log")["total"] == total


def test_from_a_directory_that_was_removed(cowfs: Cowfs, mounted: Path) -> None:
    checkpoint(cowfs)
    script = 'cd src && rm -r ../src && "$@"'
    done = subprocess.run(
        ["sh", "-c", script, "sh", *cowfs.argv("restore", "@~1")],
        cwd=mounted,
        env=cowfs.env,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done
    assert (mounted / "src" / "main.c").exists()


# -- verify ---------------------------------------------------------------------------------


def test_verify(shared_cowfs: Cowfs, place: Path) -> None:
    document = shared_cowfs.ok("verify")
    assert document["problems"] == []
    assert document["checked"]["block"] > 0
    assert document["checked"]["mount inodes"] > 0
    assert shared_cowfs.says("verify", "--thorough").endswith("no problem found\n")


def test_verify_of_a_damaged_store(cowfs: Cowfs, mounted: Path) -> None:
    (mounted / "new").write_bytes(os.urandom(5000))
    one = checkpoint(cowfs)
    store = Path(cowfs.ok("status")["store"])
    cowfs.cwd = cowfs.top
    cowfs.ok("unmount", mounted)
    damage_a_block(store)
    result = cowfs.run("-C", mounted, "verify", "--json")
    document = result.document
    assert (result.code, document["ok"]) == (47, False)
    assert document["error"]["code"] == "COWFS_VERIFY_FAILED"
    assert [problem["paths"] for problem in document["problems"]] == [["new"]]
    assert one in document["problems"][0]["checkpoints"]
    result = cowfs.run("-C", mounted, "verify")
    assert result.code == 47
    assert result.out.startswith("error: ")
    assert result.err.startswith("cowfs: verify found 1 problem(s)\n  hint: ")
    error = cowfs.fails("-C", mounted, "show", f"{one}:{mounted}/new")
    assert error["code"] == "COWFS_DAMAGED_RECORD"


def damage_a_block(store: Path) -> None:
    """Flip one bit of the largest block of a store."""
    from cowfs.store.env import open_store
    from cowfs.store.snapshot import Reader

    opened = open_store(store, writable=True)
    try:
        with Reader(opened) as reader:
            key, value = max(reader.scan("block"), key=lambda row: len(row[1]))
        with opened.begin(write=True) as txn:
            txn.put(key, value[:-1] + bytes([value[-1] ^ 1]), db=opened.tables["block"])
    finally:
        opened.close()


# -- without a mount ------------------------------------------------------------------------


def test_everything_works_without_a_mount(cowfs: Cowfs, mounted: Path) -> None:
    before = checkpoint(cowfs, "-m", "first")
    (mounted / "readme").write_text("bad")
    cowfs.ok("unmount", cwd=mounted)

    status = cowfs.ok("status")
    assert (status["mounted"], status["pid"]) == (False, None)
    assert status["changes"] == {"created": 0, "modified": 0, "deleted": 0}
    assert "is not mounted" in cowfs.says("status")

    second = cowfs.ok("checkpoint", "-m", "second")["checkpoint"]
    assert second["message"] == "second"
    assert second["uid"] == os.getuid()
    assert second["command"].startswith("cowfs checkpoint")
    assert changes(cowfs.ok("diff", before, "@")) == [("M", "readme")]
    assert cowfs.run("show", f"{before}:readme").raw == b"one\ntwo\n"
    assert cowfs.ok("export", before, cowfs.top / "out")["files"] == 2
    assert cowfs.ok("restore", before, "--dry-run")["changed"] == 1

    cowfs.ok("restore", before)
    assert (mounted / "readme").read_text() == "bad"
    assert cowfs.ok("apply")["written"] == 1
    assert (mounted / "readme").read_text() == "one\ntwo\n"
    cowfs.ok("undo")
    cowfs.ok("redo")
    assert cowfs.ok("verify")["problems"] == []
    cowfs.ok("mount", mounted, cwd=cowfs.top)
    assert (mounted / "readme").read_text() == "one\ntwo\n"
