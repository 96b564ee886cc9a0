"""Backup programs read a mount, and write back into it, completely."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tests.support.listing import Listing, difference, listing, portable
from tests.support.mounting import Mounted
from tests.tools.tool import need, run

_SECOND = 1_000_000_000


@pytest.fixture
def contents(workspace: Mounted) -> Path:
    """A directory of files, links and attributes on the mount."""
    rng = random.Random(3)
    directory = workspace.mountpoint / "contents"
    (directory / "below" / "empty").mkdir(parents=True)
    for number in range(60):
        path = directory / ("below" if number % 2 else "") / f"file {number}"
        path.write_bytes(rng.randbytes(rng.randrange(50_000)))
        path.chmod(0o600 + number % 64)
    os.link(directory / "file 0", directory / "linked")
    os.symlink("file 0", directory / "symbolic")
    os.setxattr(directory / "file 2", "user.note", b"kept")
    for number, path in enumerate(sorted(directory.rglob("*"), reverse=True)):
        when = (1_400_000_000 + number) * _SECOND
        os.utime(path, ns=(when, when), follow_symlinks=False)
    return directory


def _but_the_top(entries: Listing) -> Listing:
    return {path: entry for path, entry in portable(entries).items() if path != "."}


def test_restic(workspace: Mounted, contents: Path, plain: Path, env: dict[str, str]) -> None:
    restic = need("restic")
    settings = {"RESTIC_PASSWORD": "secret", "RESTIC_CACHE_DIR": os.fspath(plain / "cache")}

    def command(*words: str | Path) -> str:
        return run([restic, "-r", plain / "repository", *words], contents, {**env, **settings})

    before = listing(contents)
    command("init")
    command("backup", ".")
    assert "no errors were found" in command("check", "--read-data")
    checkpoint = workspace.checkpoint()
    # The second time nothing is read again: restic goes by inode, size, mtime and ctime.
    (contents / "file 4").write_text("edited")
    workspace.restore(checkpoint)
    again = command("backup", ".")
    assert "0 new,     0 changed,    61 unmodified" in again, again
    target = workspace.mountpoint / "restored"
    command("restore", "latest", "--target", target)
    assert difference(_but_the_top(before), _but_the_top(listing(target))) == []
    assert difference(before, listing(contents)) == []


def test_rclone(workspace: Mounted, contents: Path, plain: Path, env: dict[str, str]) -> None:
    rclone = need("rclone")
    options = ["--config", os.devnull, "--links"]
    checkpoint = workspace.checkpoint()

    def command(*words: str | Path) -> str:
        return run([rclone, *words, *options], plain, env)

    command("sync", contents, plain / "copy")
    assert "0 differences found" in command("check", "--download", contents, plain / "copy")
    (contents / "file 4").write_text("edited")
    workspace.restore(checkpoint)
    # Size and time tell that nothing has to be copied again.
    assert "Transferred" not in command("sync", "-v", "--stats=0", contents, plain / "copy")
    command("sync", plain / "copy", workspace.mountpoint / "back")
    assert "0 differences found" in command(
        "check", "--download", contents, workspace.mountpoint / "back"
    )
