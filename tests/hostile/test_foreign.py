"""A store that another user has put where we look."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from cowfs.cli.context import Context
from cowfs.errors import PermissionDeniedError
from tests.mount.calls import NOBODY, in_child


def test_it_is_not_opened(tmp_path: Path) -> None:
    """Neither its file by LMDB nor its socket. For root all stores are somebody's own."""
    if os.geteuid() != 0:
        pytest.skip("only root makes something of another user")
    for name in ("data", "data/cowfs", "project", "store"):
        (tmp_path / name).mkdir()
    row = {name: str(tmp_path / name) for name in ("base", "mountpoint", "store")}
    row["base"] = row["mountpoint"] = str(tmp_path / "project")
    (tmp_path / "data/cowfs/workspaces.json").write_text(json.dumps({"workspaces": [row]}))
    above = [tmp_path, *tmp_path.parents][:4]
    modes = {path: path.stat().st_mode & 0o7777 for path in above}

    def locate() -> None:
        os.environ["XDG_DATA_HOME"] = str(tmp_path / "data")
        Context(str(tmp_path / "project")).locate()

    def refused() -> None:
        with pytest.raises(PermissionDeniedError, match="belongs to user 0"):
            locate()

    in_child(locate)
    try:
        for path in above:
            path.chmod(modes[path] | 0o055)
        in_child(refused, uid=NOBODY)
        os.chown(tmp_path / "store", NOBODY, NOBODY)
        in_child(locate, uid=NOBODY)
    finally:
        for path in above:
            path.chmod(modes[path])
