"""Python's own tests of files, with their temporary directory on a mount."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.mounting import Mounted
from tests.tools.tool import SECONDS, changes, run, started

MODULES = {
    "calls": ["test_os", "test_posix", "test_mmap", "test_fileio", "test_fileinput"],
    "names": ["test_pathlib", "test_posixpath", "test_genericpath", "test_glob"],
    "trees": ["test_shutil", "test_tempfile", "test_filecmp", "test_shelve", "test_dbm_dumb"],
}
_NOT_FILES = ["*Spawn*", "*spawn*", "*Exec*", "*Fork*", "*fork*", "*andom*", "*Pidfd*", "*CPU*"]
_FIND = """
import importlib.util, sys
if importlib.util.find_spec("test") and importlib.util.find_spec("test.libregrtest"):
    print(*[name for name in sys.argv[1:] if importlib.util.find_spec("test." + name)])
"""


def _interpreter() -> str:
    """The interpreter of this environment, without the environment."""
    name = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    path = Path(sys.base_prefix) / "bin" / name
    return os.fspath(path) if path.exists() else sys.executable


@contextlib.contextmanager
def _running(
    modules: list[str], place: Path, report: Path, env: dict[str, str]
) -> Iterator[subprocess.Popen[bytes]]:
    words = [_interpreter(), "-E", "-s", "-m", "test", "-q", f"--junit-xml={report}"]
    words += [f"--tempdir={place}"]
    for pattern in _NOT_FILES:
        words += ["-i", pattern]
    with started([*words, *modules], place, {**env, "TMPDIR": os.fspath(place)}) as process:
        yield process


def _outcomes(report: Path, said: bytes) -> dict[str, str]:
    """What became of each test: "failed", "skipped" or "passed"."""
    assert report.exists(), said.decode("utf-8", "replace")
    found = {}
    for case in ElementTree.parse(report).iter("testcase"):
        kinds = {child.tag for child in case}
        outcome = "failed" if kinds & {"failure", "error"} else "passed"
        found[case.attrib["name"]] = "skipped" if "skipped" in kinds else outcome
    return found


@pytest.mark.parametrize("group", MODULES)
def test_the_same_tests_pass_as_on_an_ordinary_file_system(
    workspace: Mounted, plain: Path, env: dict[str, str], tmp_path: Path, group: str
) -> None:
    modules = run([_interpreter(), "-c", _FIND, *MODULES[group]], plain, env).split()
    if not modules:
        pytest.skip("this interpreter comes without its tests")
    place = workspace.mountpoint / "tmp"
    place.mkdir()
    before = workspace.checkpoint()
    reports = tmp_path / "mount.xml", tmp_path / "plain.xml"
    with (
        _running(modules, place, reports[0], env) as here,
        _running(modules, plain, reports[1], env) as there,
    ):
        said_here, _ = here.communicate(timeout=SECONDS)
        said_there, _ = there.communicate(timeout=SECONDS)
    found, expected = _outcomes(reports[0], said_here), _outcomes(reports[1], said_there)
    assert len(expected) > 30 * len(modules)
    differing = {
        name: (found.get(name), expected.get(name))
        for name in found.keys() | expected.keys()
        if found.get(name) != expected.get(name)
    }
    assert differing == {}, said_here.decode("utf-8", "replace")
    # They leave nothing behind, and what they did can be taken back.
    workspace.restore(before)
    assert os.listdir(place) == []
    assert changes(workspace) == (0, 0, 0)
