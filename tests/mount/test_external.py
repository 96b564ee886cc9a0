"""The base changed through another path while it is mounted: the kernel shows what was adopted."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import pytest

from tests.conftest import MountFunction
from tests.mount.test_lifecycle import base_as_the_daemon_sees_it


def same_stat(one: str | Path, two: str | Path) -> None:
    a, b = os.stat(one), os.stat(two)
    assert (a.st_size, a.st_mtime_ns, a.st_mode) == (b.st_size, b.st_mtime_ns, b.st_mode)


@pytest.mark.parametrize("held", [False, True])
@pytest.mark.parametrize("mode", [0o644, 0o755])
def test_edited_while_mounted(mount: MountFunction, base: Path, held: bool, mode: int) -> None:
    """Size, times and pages that the kernel had are gone when the open that finds it returns."""
    file = base / "f"
    file.write_bytes(b"old")
    file.chmod(mode)
    mounted = mount(base)
    hidden = Path(base_as_the_daemon_sees_it(mounted)) / "f"
    assert file.read_bytes() == b"old"
    fd = os.open(file, os.O_RDONLY) if held else -1
    new = b"new and longer" * 1000
    hidden.write_bytes(new)
    with open(file, "rb") as opened:
        assert os.fstat(opened.fileno()).st_size == len(new)
        assert opened.read() == new
        with mmap.mmap(opened.fileno(), 0, prot=mmap.PROT_READ) as mapped:
            assert mapped[:] == new
    same_stat(file, hidden)
    if held:
        assert os.pread(fd, 100_000, 0) == new
        os.close(fd)
    hidden.write_bytes(b"short")
    assert file.read_bytes() == b"short"
    same_stat(file, hidden)


def test_replaced_while_mounted(mount: MountFunction, base: Path) -> None:
    (base / "f").write_bytes(b"old")
    mounted = mount(base)
    hidden = Path(base_as_the_daemon_sees_it(mounted))
    assert (base / "f").read_bytes() == b"old"
    (hidden / "tmp").write_bytes(b"another file")
    (hidden / "tmp").rename(hidden / "f")
    assert (base / "f").read_bytes() == b"another file"
    same_stat(base / "f", hidden / "f")


def test_edited_by_a_hard_link_from_outside(
    mount: MountFunction, base: Path, tmp_path: Path
) -> None:
    (base / "f").write_bytes(b"old")
    os.link(base / "f", tmp_path / "link")
    mount(base)
    assert (base / "f").read_bytes() == b"old"
    (tmp_path / "link").write_bytes(b"new and longer")
    assert (base / "f").read_bytes() == b"new and longer"
    same_stat(base / "f", tmp_path / "link")


def test_truncated_by_the_open_that_finds_it(mount: MountFunction, base: Path) -> None:
    (base / "f").write_bytes(b"old")
    mounted = mount(base)
    hidden = Path(base_as_the_daemon_sees_it(mounted)) / "f"
    assert (base / "f").read_bytes() == b"old"
    hidden.write_bytes(b"new and longer")
    (base / "f").write_bytes(b"mine")
    assert (base / "f").read_bytes() == b"mine"
    assert (base / "f").stat().st_size == 4
    assert hidden.read_bytes() == b"new and longer", "the base is never written while mounted"


def test_appended_by_the_open_that_finds_it(mount: MountFunction, base: Path) -> None:
    """O_APPEND goes to the end that the file has now (open(2))."""
    (base / "f").write_bytes(b"old")
    mounted = mount(base)
    hidden = Path(base_as_the_daemon_sees_it(mounted)) / "f"
    assert (base / "f").read_bytes() == b"old"
    hidden.write_bytes(b"new and longer")
    with open(base / "f", "ab") as file:
        file.write(b"!")
    assert (base / "f").read_bytes() == b"new and longer!"
