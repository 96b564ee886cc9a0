"""The commands and `.cowfs/checkpoints` tell the same story."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.cli.command import Cowfs
from tests.support.listing import difference, listing, portable


def history(cowfs: Cowfs, top: Path) -> tuple[str, str]:
    """Two checkpoints and a head, all different."""
    (top / "d/e").mkdir(parents=True)
    (top / "d/kept").write_text("kept\n")
    (top / "d/changed").write_text("first\n" * 5000)
    (top / "d/goes").write_text("goes\n")
    (top / "d/e/mode").write_text("mode\n")
    os.symlink("kept", top / "d/link")
    first = str(cowfs.ok("checkpoint", "--label", "first")["checkpoint"]["id"])
    (top / "d/changed").write_text("second\n" * 5000)
    (top / "d/goes").unlink()
    (top / "d/comes").write_text("comes\n")
    (top / "d/e/mode").chmod(0o600)
    (top / "d/link").unlink()
    os.symlink("changed", top / "d/link")
    second = str(cowfs.ok("checkpoint")["checkpoint"]["id"])
    (top / "d/changed").write_text("third\n")
    (top / "d/kept").unlink()
    return first, second


def test_they_agree(cowfs: Cowfs, mounted: Path, tmp_path: Path) -> None:
    first, second = history(cowfs, mounted)
    place = mounted / ".cowfs/checkpoints"

    for checkpoint in (first, second):
        cowfs.ok("export", checkpoint, tmp_path / checkpoint)
        exported, browsed = listing(tmp_path / checkpoint), listing(place / checkpoint)
        assert difference(portable(exported), portable(browsed)) == []
        shown = cowfs.run("show", f"{checkpoint}:d/changed")
        assert shown.raw == (place / checkpoint / "d/changed").read_bytes()

    def changed(one: Path, two: Path) -> set[str]:
        before, after = portable(listing(one)), portable(listing(two))
        paths = before.keys() | after.keys()
        return {p for p in paths if before.get(p) != after.get(p) and p != "." and p != "d"}

    for old, new in ((first, second), (second, "@"), (first, "@")):
        document = cowfs.ok("diff", old, new)
        after = mounted if new == "@" else place / new
        assert {row["path"].rstrip("/") for row in document["changes"]} == changed(
            place / old, after
        )


def test_a_patch_of_both(cowfs: Cowfs, mounted: Path, tmp_path: Path) -> None:
    """What `diff -ru` says of two checkpoints makes the one of the other, as `cowfs diff` does."""
    first, second = history(cowfs, mounted)
    place = mounted / ".cowfs/checkpoints"
    for name in ("goes", "comes", "changed"):
        one, two = place / first / "d" / name, place / second / "d" / name
        if one.exists() and two.exists():
            subprocess.run(["cp", one, tmp_path / name], check=True)
            patch = subprocess.run(["diff", "-u", one, two], capture_output=True, check=False)
            assert patch.returncode == 1
            subprocess.run(["patch", "-s", tmp_path / name], input=patch.stdout, check=True)
            assert (tmp_path / name).read_bytes() == two.read_bytes()
        else:
            assert one.exists() != two.exists()


def test_it_is_no_part_of_the_workspace(cowfs: Cowfs, mounted: Path) -> None:
    """Looking into it changes nothing, and nothing of it is written anywhere."""
    history(cowfs, mounted)
    before = cowfs.ok("diff", "first", "@")["changes"]
    listing(mounted / ".cowfs/checkpoints")
    assert cowfs.ok("diff", "first", "@")["changes"] == before
    assert cowfs.ok("verify")["problems"] == []
    assert cowfs.ok("status", cwd=mounted / ".cowfs/checkpoints/first/d")["mounted"]
    cowfs.cwd = cowfs.top
    cowfs.ok("unmount", mounted)
    assert ".cowfs" not in os.listdir(mounted)
    assert sorted(os.listdir(mounted / "d")) == ["changed", "comes", "e", "link"]
