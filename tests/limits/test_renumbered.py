"""A disk that the kernel gives another number after the next boot is the same disk."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from cowfs.service.selectors import all_checkpoints
from cowfs.service.workspace import reading
from tests.limits.disks import MIB, attached, need_loop_mounts
from tests.support.mounting import mounted

pytestmark = pytest.mark.usefixtures("needs_fuse")


def make_disk(image: Path) -> None:
    with open(image, "wb") as file:
        file.truncate(16 * MIB)
    subprocess.run(
        ["mkfs.ext4", "-q", "-F", str(image)], check=True, capture_output=True, timeout=60
    )


def test_a_project_on_a_disk_with_another_number(tmp_path: Path) -> None:
    need_loop_mounts()
    image, other = tmp_path / "disk.img", tmp_path / "other.img"
    at, beside = tmp_path / "disk", tmp_path / "beside"
    for path in (image, other):
        make_disk(path)
    for place in (at, beside):
        place.mkdir()
    base, store = at / "project", tmp_path / "store"
    content = os.urandom(100_000)
    with attached(image, at) as device:
        base.mkdir()
        (base / "file").write_bytes(content)
        with mounted(base, store) as mount:
            (mount.mountpoint / "new").write_text("made in the workspace")
            checkpoint = mount.checkpoint()
        number = os.stat(base).st_dev
    with attached(other, beside, device), attached(image, at):
        if os.stat(base).st_dev == number:
            pytest.skip("somebody else took the loop device meanwhile")
        with mounted(base, store) as mount:
            assert (mount.mountpoint / "file").read_bytes() == content
            assert mount.call("status")["health"]["problems"] == []
            mount.restore(checkpoint)
            assert (mount.mountpoint / "file").read_bytes() == content
        with reading(store, None) as workspace:
            kinds = {record.kind for record in all_checkpoints(workspace.reader)}
        assert kinds == {"start", "manual", "rescue"}
