"""The project that the file workloads unpack: some thousands of files, as an uncompressed tar."""

from __future__ import annotations

import hashlib
import platform
import sys
import sysconfig
import tarfile
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from benchmarks.inputs.cache import cache_directory, fetch
from benchmarks.system import BenchError

REQUIREMENT = Path(__file__).parents[2] / "scripts" / "_demo" / "project.txt"
"""The pinned project of ``scripts/demo``: figures of different days are of the same files."""


@dataclass(frozen=True)
class Archive:
    """An uncompressed tar file and what is in it."""

    path: Path
    name: str
    entries: int
    bytes: int

    @classmethod
    def read(cls, path: Path, name: str) -> Archive:
        """Count what the tar file *path* holds."""
        with tarfile.open(path, "r:") as archive:
            members = archive.getmembers()
        return cls(path, name, len(members), sum(member.size for member in members))

    def document(self) -> dict[str, object]:
        """The JSON form."""
        return {"name": self.name, "entries": self.entries, "bytes": self.bytes}


def prepare(source: Path | None, scratch: Path) -> Archive:
    """The archive to unpack.

    *source* is a directory or a tar file of the user's; None means the project from PyPI, or the
    standard library of this interpreter where PyPI cannot be reached. What is made of the user's
    source goes to *scratch*.
    """
    if source is None:
        return _default_archive()
    target = scratch / "source.tar"
    if source.is_dir():
        _pack(source, target)
    elif source.is_file():
        _repack(source, target)
    else:
        raise BenchError(f"{source} is neither a directory nor a tar file")
    return Archive.read(target, source.name)


def _default_archive() -> Archive:
    cache = cache_directory()
    cache.mkdir(parents=True, exist_ok=True)
    pinned = hashlib.sha256(REQUIREMENT.read_bytes()).hexdigest()[:12]
    found = list(cache.glob(f"*-{pinned}.tar"))
    if found:
        return Archive.read(found[0], found[0].stem.removesuffix(f"-{pinned}"))
    with tempfile.TemporaryDirectory(dir=cache) as scratch:
        try:
            name, tree = _download(Path(scratch))
        except BenchError as error:
            print(f"bench: {error}; using the standard library", file=sys.stderr)
            name, tree = f"stdlib-{platform.python_version()}", Path(sysconfig.get_path("stdlib"))
            path = cache / f"{name}.tar"
        else:
            path = cache / f"{name}-{pinned}.tar"
        if not path.exists():
            _pack(tree, path)
    return Archive.read(path, name)


def _download(scratch: Path) -> tuple[str, Path]:
    """Fetch the pinned wheel and unpack it; returns the name with version, and the tree."""
    argv = [sys.executable, "-m", "pip", "download", "--quiet", "--no-input", "--no-deps"]
    argv += ["--only-binary", ":all:", "--require-hashes", "--requirement", str(REQUIREMENT)]
    fetch([*argv, "--dest", scratch])
    wheels = list(scratch.glob("*.whl"))
    if not wheels:
        raise BenchError("the demo's project has no wheel")
    name, version = wheels[0].name.split("-")[:2]
    tree = scratch / "tree"
    with zipfile.ZipFile(wheels[0]) as wheel:
        wheel.extractall(tree)
    return f"{name}-{version}", tree


def _pack(directory: Path, target: Path) -> None:
    """Write *directory* to the tar file *target*, without what an interpreter or pip put there."""

    def keep(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        skipped = {"__pycache__", "site-packages"}
        return None if skipped & set(member.name.split("/")) else member

    partial = target.with_suffix(".partial")
    with tarfile.open(partial, "w", format=tarfile.PAX_FORMAT) as archive:
        archive.add(directory, arcname=directory.name or "root", filter=keep)
    partial.replace(target)


def _repack(source: Path, target: Path) -> None:
    """Copy a tar file without its compression, which is not what an untar should measure."""
    partial = target.with_suffix(".partial")
    try:
        with (
            tarfile.open(source, "r:*") as packed,
            tarfile.open(partial, "w", format=tarfile.PAX_FORMAT) as plain,
        ):
            for member in packed:
                plain.addfile(member, packed.extractfile(member) if member.isreg() else None)
    except tarfile.TarError as error:
        raise BenchError(f"{source}: {error}") from error
    partial.replace(target)
