"""Applying patches with the real tools to exported trees."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from pathlib import Path

from cowfs.service.diff import diff
from cowfs.service.export import export_tree
from cowfs.service.selectors import Point
from cowfs.service.textdiff import patch
from cowfs.service.workspace import ReadOnly

Files = dict[bytes, tuple[str, bytes]]
"""Path to ("100644", "100755" or "120000", content): what a patch can carry."""


def files_of(top: Path) -> Files:
    """The files and links of a real directory."""
    out: Files = {}
    root = os.fsencode(top)
    for directory, _, names in os.walk(root):
        for name in [*names, *(n for n in _ if os.path.islink(directory + b"/" + n))]:
            full = directory + b"/" + name
            st = os.lstat(full)
            path = os.path.relpath(full, root)
            if stat.S_ISLNK(st.st_mode):
                out[path] = ("120000", os.readlink(full))
            elif stat.S_ISREG(st.st_mode):
                executable = bool(st.st_mode & stat.S_IXUSR)
                with open(full, "rb") as file:
                    out[path] = ("100755" if executable else "100644", file.read())
    return out


def git(cwd: Path, *arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """Run git away from any repository and configuration."""
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(cwd),
        "GIT_CEILING_DIRECTORIES": str(cwd.parent),
        "GIT_CONFIG_NOSYSTEM": "1",
    }
    return subprocess.run(
        ["git", *arguments], cwd=cwd, env=environment, input=stdin, capture_output=True, check=False
    )


def gnu_patch(cwd: Path, text: bytes) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        ["patch", "-p1", "--no-backup-if-mismatch", "--batch"],
        cwd=cwd,
        input=text,
        capture_output=True,
        check=False,
    )


def text_of(
    workspace: ReadOnly, a: Point, b: Point, *paths: bytes
) -> tuple[bytes, list[tuple[bytes, str]]]:
    """The patch from one state to the other, and what it leaves out."""
    omitted: list[tuple[bytes, str]] = []
    changes = diff(workspace, a, b, paths)
    text = b"".join(
        patch(workspace, a, b, changes, omitted=lambda path, why: omitted.append((path, why)))
    )
    return text, omitted


def check_patch(workspace: ReadOnly, a: Point, b: Point, top: Path, *, gnu: bool = True) -> bytes:
    """The patch makes b of a, by `git apply` forwards and backwards, and by `patch -p1`."""
    one, two = top / "one", top / "two"
    for directory in (one, two):
        if directory.exists():
            shutil.rmtree(directory)
    export_tree(workspace, a, one)
    export_tree(workspace, b, two)
    before, after = files_of(one), files_of(two)
    text, _ = text_of(workspace, a, b)
    if not text:
        assert before == after
        return text
    tree = top / "tree"
    shutil.copytree(one, tree, symlinks=True)
    try:
        done = git(tree, "apply", "--whitespace=nowarn", stdin=text)
        assert done.returncode == 0, (done.stderr, text)
        assert files_of(tree) == after, text
        done = git(tree, "apply", "--whitespace=nowarn", "-R", stdin=text)
        assert done.returncode == 0, (done.stderr, text)
        assert files_of(tree) == before, text
    finally:
        shutil.rmtree(tree)
    if gnu:
        shutil.copytree(one, tree, symlinks=True)
        try:
            done = gnu_patch(tree, text)
            assert done.returncode == 0, (done.stdout, text)
            assert files_of(tree) == after, (done.stdout, text)
        finally:
            shutil.rmtree(tree)
    return text
