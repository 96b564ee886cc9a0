"""The project that the demo works on: a real one, or a copy of the user's."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from dataclasses import dataclass
from pathlib import Path

from _demo.terminal import DemoError, Report

_REQUIREMENT = Path(__file__).parent / "project.txt"


@dataclass(frozen=True, slots=True)
class Size:
    """How much a tree holds; `size` in bytes."""

    files: int
    size: int


def measure(root: Path) -> Size:
    """Counts the files below *root*, and their bytes."""
    files = size = 0
    for folder, _folders, names in os.walk(root):
        files += len(names)
        size += sum(os.lstat(os.path.join(folder, name)).st_size for name in names)
    return Size(files, size)


def prepare(source: Path | None, project: Path, report: Report) -> str:
    """Fills the new directory *project* and returns what to call it.

    *source* is the user's directory, which is only read. Without it, the demo's project is
    fetched by pip, and where that is not possible, Python's own library is taken.
    """
    if source is not None:
        _copy(source, project)
        _detach(project, report)
        return f"a copy of {source}"
    name = _download(project, report)
    if name is None:
        name = _standard_library(project)
    return name


def _copy(source: Path, project: Path) -> None:
    needed = 3 * measure(source).size + (256 << 20)
    free = shutil.disk_usage(project.parent).free
    if free < needed:
        raise DemoError(
            f"not enough room in {project.parent}: copies of {source} need {needed >> 20} MiB, "
            f"and {free >> 20} MiB are free. Set TMPDIR to a directory with more room."
        )
    result = subprocess.run(
        ["cp", "-a", "--", os.path.join(source, "."), project],
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        errors="backslashreplace",
        check=False,
    )
    if result.returncode != 0:
        raise DemoError(f"cannot copy {source}:\n{result.stderr.strip()}")


def _detach(project: Path, report: Report) -> None:
    """Makes sure that git in the copy cannot write to the user's repository.

    In a worktree and in a submodule, .git is a file that names the real repository.
    """
    git = project / ".git"
    if os.path.lexists(git) and (git.is_symlink() or not git.is_dir()):
        git.unlink()
        report.line("Its .git leads to a repository elsewhere: the copy gets one of its own.")


def _download(project: Path, report: Report) -> str | None:
    """The wheel named in project.txt, unpacked; None when it cannot be had."""
    target = project.parent / "download"
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-input"]
    command += ["--disable-pip-version-check", "--no-deps", "--only-binary", ":all:"]
    command += ["--require-hashes", "--requirement", os.fspath(_REQUIREMENT)]
    command += ["--retries", "1", "--timeout", "20", "--dest", os.fspath(target)]
    result = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        errors="backslashreplace",
        check=False,
    )
    if result.returncode != 0:
        report.line("pip could not fetch the demo's project (no network?); its last words:")
        report.line("    " + (result.stderr.strip().splitlines() or ["none"])[-1])
        report.line("So Python's own standard library is taken instead.")
        return None
    (wheel,) = target.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(project)
    shutil.rmtree(target)
    name, version = wheel.name.split("-")[:2]
    return f"{name} {version}"


def _standard_library(project: Path) -> str:
    library = sysconfig.get_paths()["stdlib"]
    shutil.copytree(
        library,
        project,
        symlinks=True,
        dirs_exist_ok=True,
        ignore=shutil.ignore_patterns("__pycache__", "site-packages", "dist-packages"),
    )
    return "Python's standard library"
