"""Wheels without a network: made from what is installed, or from nothing."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from importlib import metadata
from pathlib import Path, PurePosixPath


def pack(place: Path, name: str, version: str, files: dict[str, bytes]) -> Path:
    """A pure wheel with `files`, which may hold parts of its .dist-info directory."""
    info = f"{name}-{version}.dist-info"
    files = {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode(),
        **files,
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = [f"{path},sha256={_hash(content)},{len(content)}" for path, content in files.items()]
    record.append(f"{info}/RECORD,,")
    wheel = place / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, content in files.items():
            archive.writestr(path, content)
        archive.writestr(f"{info}/RECORD", "\n".join(record) + "\n")
    return wheel


def repack(place: Path, name: str) -> Path | None:
    """The wheel from which a distribution of this environment was installed; None when it is not
    there. Only for distributions of pure Python.
    """
    try:
        found = metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return None
    files = {}
    made_here = {"RECORD", "WHEEL", "INSTALLER", "REQUESTED", "direct_url.json"}
    info = ""
    for path in found.files or ():
        parts = PurePosixPath(path).parts
        if parts[0] == ".." or "__pycache__" in parts:
            continue
        if parts[0].endswith(".dist-info"):
            info = parts[0]
            if parts[-1] in made_here:
                continue
        files[str(path)] = Path(str(found.locate_file(path))).read_bytes()
    base, version = info.removesuffix(".dist-info").split("-")
    return pack(place, base, version, files)


def _hash(content: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
