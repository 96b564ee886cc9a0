"""The machine's system: a small Debian with the locked Python packages, made once.

It is made from the package sources of this machine, as far as they are of the right release,
without leaving their names in it. Python's packages are downloaded here and installed there by
scripts/setup, so that what runs in the machine is what runs everywhere. The root file system is
never written: the machine puts a layer in memory over it.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.vm.trouble import BUILD_BYTES, need_room, need_root, need_tools, run

ROOT = Path(__file__).resolve().parents[2]
HOME = "opt/cowfs"
"""Where the checkout lies in the machine."""
_RELEASE, _PYTHON = "bookworm", "3.11"
_PACKAGES = (
    # the machine
    *("linux-image-cloud-amd64", "busybox-static", "e2fsprogs", "iproute2", "kmod", "procps"),
    *("psmisc", "strace", "util-linux"),
    # what scripts/setup installs
    *("fuse3", "libfuse3-dev", "pkg-config", "gcc", "libc6-dev", "git", "attr"),
    *("python3", "python3-venv", "python3-dev"),
)
_MODULES = ("virtio_pci", "virtio_blk", "overlay")
"""What the machine needs before it has a root file system."""
_SIZE = "3G"
_PLATFORMS = ("manylinux_2_36", "manylinux_2_34", "manylinux_2_28", "manylinux2014", "linux")
"""What the C library of the release can load."""
_RECIPE = ("tests/vm/image.py", "tests/vm/initrd", "scripts/setup", "requirements")
"""What the image is made of: a change makes another one."""
_NO_NETWORK = "no network? scripts/vm needs the package sources of /etc/apt, and pip's index"
_TREES = ("benchmarks", "cowfs", "docs", "requirements", "scripts", "tests")
_FILES = ("LICENSE", "README.md", "Vagrantfile", "pyproject.toml")


@dataclass(frozen=True)
class Image:
    """The files of a finished image; `place` is their directory."""

    place: Path

    @property
    def kernel(self) -> Path:
        return self.place / "vmlinuz"

    @property
    def initrd(self) -> Path:
        return self.place / "initrd"

    @property
    def root(self) -> Path:
        return self.place / "root.ext4"


def cache() -> Path:
    """Where images are kept."""
    return Path(os.environ.get("COWFS_VM_CACHE") or Path.home() / ".cache" / "cowfs-vm")


def key(root: Path = ROOT) -> str:
    """The name of the image that this checkout needs: it changes with all that is in it."""
    digest = hashlib.sha256()
    for name in _RECIPE:
        path = root / name
        for file in sorted(path.iterdir()) if path.is_dir() else [path]:
            text = file.read_bytes()
            digest.update(b"%s %d\n" % (os.fsencode(file.relative_to(root)), len(text)) + text)
    return digest.hexdigest()[:16]


def ready(say: Callable[[str], None]) -> Image:
    """The image of this checkout, made if it is not there. Raises VmError."""
    place = cache() / key()
    need_tools(build=not place.exists())
    if not place.exists():
        need_root("making the image")
        place.parent.mkdir(parents=True, exist_ok=True)
        with _alone(place.parent):
            if not place.exists():
                need_room(place.parent, BUILD_BYTES)
                _build(place, say)
    return Image(place)


@contextlib.contextmanager
def _alone(place: Path) -> Iterator[None]:
    """One process at a time."""
    fd = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _build(place: Path, say: Callable[[str], None]) -> None:
    unfinished = place.with_name(place.name + ".unfinished")
    _remove(unfinished)
    unfinished.mkdir()
    top = unfinished / "system"
    try:
        say(f"making a {_RELEASE} system (once; 3 to 6 minutes)")
        _debian(top)
        say("installing the locked Python packages in it")
        _python(unfinished, top)
        say("making the image")
        _clean(top)
        _boot_files(unfinished, top)
        run(["mkfs.ext4", "-q", "-F", "-d", top, unfinished / "root.ext4", _SIZE])
        _remove(top)
        unfinished.rename(place)
    finally:
        _remove(unfinished)


def _remove(path: Path) -> None:
    if path.exists():
        run(["rm", "-rf", "--one-file-system", path])


# -- Debian -------------------------------------------------------------------------------------


def _debian(top: Path) -> None:
    options = ["--variant=minbase", "--mode=root", "--format=directory"]
    options += [f"--include={','.join(_PACKAGES)}"]
    # A mirror that stands still is as good as one that moves.
    for option in ("Check-Valid-Until", "Check-Date"):
        options.append(f'--aptopt=Acquire::{option} "false"')
    for kept_out in ("man", "doc", "locale"):
        options.append(f"--dpkgopt=path-exclude=/usr/share/{kept_out}/*")
    run(["mmdebstrap", *options, _RELEASE, top, *sources(Path("/etc/apt"))], _NO_NETWORK)


def sources(apt: Path) -> list[Path]:
    """The files of an /etc/apt that name the release; without any the default mirror is used."""
    files = [apt / "sources.list", *sorted((apt / "sources.list.d").glob("*"))]
    return [
        file
        for file in files
        if file.suffix in (".list", ".sources") and file.is_file() and _names_release(file)
    ]


def _names_release(file: Path) -> bool:
    text = file.read_text(encoding="utf-8", errors="replace")
    if file.suffix == ".sources":
        lines = re.findall(r"^Suites:(.*)$", text, re.M | re.I)
        return any(_RELEASE in line.split() for line in lines)
    lines = re.findall(r"^deb\s+(?:\[[^]]*\]\s*)?\S+\s+(\S+)", text, re.M)
    return _RELEASE in lines


def _clean(top: Path) -> None:
    """Nothing of the machine that made it stays in the image."""
    apt = top / "etc" / "apt"
    for file in [
        apt / "sources.list",
        apt / "apt.conf.d" / "99mmdebstrap",
        top / "etc/resolv.conf",
    ]:
        file.unlink(missing_ok=True)
    for file in (apt / "sources.list.d").iterdir():
        file.unlink()
    run(["chroot", top, "useradd", "--create-home", "--shell", "/bin/bash", "cowfs"])
    (top / "etc/hostname").write_text("cowfs-vm\n")
    (top / "etc/hosts").write_text("127.0.0.1 localhost cowfs-vm\n")
    (top / "etc/fstab").write_text("")
    with open(top / "etc/fuse.conf", "a") as conf:
        conf.write("user_allow_other\n")


def _boot_files(out: Path, top: Path) -> None:
    """The kernel, and a first file system in memory: busybox, modules, and the script initrd."""
    (kernel,) = (top / "boot").glob("vmlinuz-*")
    version = kernel.name.removeprefix("vmlinuz-")
    shutil.copy(kernel, out / "vmlinuz")
    small = out / "small"
    for directory in ("bin", "dev", "proc", "sys", "modules", "lower", "upper", "root"):
        (small / directory).mkdir(parents=True)
    shutil.copy(top / "bin/busybox", small / "bin/busybox")
    shutil.copy(ROOT / "tests/vm/initrd", small / "init")
    order: list[str] = []
    for module in _MODULES:
        shown = run(["modprobe", "-d", top, "-S", version, "--show-depends", module])
        for path in re.findall(r"^insmod (\S+)", shown, re.M):
            if (name := Path(path).name) not in order:
                order.append(name)
                shutil.copy(path, small / "modules" / name)
    (small / "modules/order").write_text("".join(f"{name}\n" for name in order))
    names = "".join(f"{path.relative_to(small)}\n" for path in sorted(small.rglob("*")))
    with open(out / "initrd", "wb") as file:
        subprocess.run(
            ["cpio", "--create", "--format=newc", "--quiet", "--owner=0:0"],
            input=names.encode(),
            stdout=file,
            cwd=small,
            check=True,
        )
    _remove(small)


# -- Python -------------------------------------------------------------------------------------


def _python(out: Path, top: Path) -> None:
    wheels, home = out / "wheels", top / HOME
    pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-build-isolation"]
    pip += ["--require-hashes", "--python-version", _PYTHON, "--implementation", "cp"]
    for platform in _PLATFORMS:
        pip += ["--platform", f"{platform}_x86_64"]
    for file in ("build", "dev"):
        run([*pip, "-d", wheels, "-r", ROOT / "requirements" / f"{file}.txt"], _NO_NETWORK)
    home.mkdir(parents=True)
    pack(home / "checkout.tar")
    run(["tar", "-C", home, "-xf", home / "checkout.tar"])
    (home / "checkout.tar").unlink()
    shutil.copytree(wheels, top / "opt/wheels")
    env = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LANG": "C.UTF-8"}
    env |= {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "/opt/wheels"}
    run(["chroot", top, f"/{HOME}/scripts/setup"], env=env)
    _remove(top / "opt/wheels")
    _remove(wheels)


def pack(file: Path, root: Path = ROOT) -> None:
    """This checkout as it is now, as a tar archive that everybody in the machine can read."""

    def entry(info: tarfile.TarInfo) -> tarfile.TarInfo | None:
        if "__pycache__" in info.name:
            return None
        info.uid = info.gid = 0
        info.uname = info.gname = "root"
        info.mode |= 0o555 if info.isdir() or info.mode & 0o100 else 0o444
        return info

    with tarfile.open(file, "w") as archive:
        for name in (*_TREES, *_FILES):
            archive.add(root / name, name, filter=entry)
