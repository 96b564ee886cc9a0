"""pip and npm install into a mount, without a network, and what they installed works there."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from tests.support.listing import difference, listing
from tests.support.mounting import Mounted
from tests.tools import wheels
from tests.tools.tool import changes, need, run

_TRIO = ["attrs", "sortedcontainers", "idna", "outcome", "sniffio", "trio"]
_PYTEST = ["iniconfig", "packaging", "pluggy", "pygments", "pytest"]

# -- pip ----------------------------------------------------------------------------------------


class Venv:
    """A virtual environment on the mount."""

    def __init__(self, top: Path, env: dict[str, str], packages: Path) -> None:
        self.top = top
        self.env = env
        self.packages = packages
        base = Path(sys.base_prefix) / "bin" / f"python{sys.version_info[0]}.{sys.version_info[1]}"
        python = os.fspath(base) if base.exists() else sys.executable
        run([python, "-m", "venv", "--without-pip", top], packages, env)
        self.python = top / "bin" / "python"

    def pip(self, *words: str | Path) -> str:
        """This environment's own pip, working on the one on the mount."""
        pip = [sys.executable, "-m", "pip", "--isolated", "--disable-pip-version-check"]
        return run([*pip, "--python", self.python, *words], self.packages, self.env)

    def install(self, *names: str) -> str:
        found = f"--find-links={self.packages}"
        options = ["--no-cache-dir", "--no-index", found, "--root-user-action=ignore"]
        return self.pip("install", *options, *names)

    def listed(self) -> set[str]:
        return {row["name"].lower() for row in json.loads(self.pip("list", "--format=json"))}


@pytest.fixture
def venv(top: Path, plain: Path, env: dict[str, str]) -> Venv:
    for name in ("pip", *_TRIO, *_PYTEST):
        if name != "pip" and wheels.repack(plain, name) is None:
            pytest.skip(f"{name} is not installed here, and nothing is fetched from a network")
    return Venv(top / "venv", env, plain)


def test_pip_install_and_a_test_suite(workspace: Mounted, venv: Venv, env: dict[str, str]) -> None:
    empty = workspace.checkpoint()
    venv.install("trio", "pytest")
    names = venv.listed()
    assert names >= {*_TRIO, *_PYTEST}
    venv.pip("check")
    installed = listing(venv.top)
    checkpoint = workspace.checkpoint("installed")

    # Trio brings its own tests; these need no other package and no network.
    site = next(venv.top.glob("lib/python*/site-packages"))
    modules = ("channel", "file_io", "path", "subprocess", "sync", "unix_pipes", "util")
    suites = [f"test_{name}.py" for name in modules]
    # Python as it is with the options of the environment of this test run left out.
    options = ["-q", "-p", "no:cacheprovider", "-p", "trio._tests.pytest_plugin", "-W", "ignore"]
    temporary = workspace.mountpoint / "tmp"
    temporary.mkdir()
    said = run(
        [venv.top / "bin" / "pytest", *options, "--rootdir", site / "trio", *suites],
        site / "trio" / "_tests",
        {**env, "TMPDIR": os.fspath(temporary)},
    )
    assert " passed" in said, said
    assert int(said.rsplit(" passed", 1)[0].split()[-1]) > 60, said

    workspace.restore(checkpoint)
    assert difference(installed, listing(venv.top)) == []
    venv.pip("uninstall", "-y", "pytest", "pluggy")
    assert venv.listed() == names - {"pytest", "pluggy"}
    workspace.call("undo")
    workspace.restore(empty)
    assert venv.listed() == set()
    workspace.restore(checkpoint)
    assert difference(installed, listing(venv.top)) == []
    run([venv.python, "-c", "import trio; trio.run(trio.sleep, 0)"], venv.packages, env)


def test_pip_upgrade(workspace: Mounted, venv: Venv, env: dict[str, str]) -> None:
    """pip replaces a version by renames, and a restore brings the old one back."""
    script = b"[console_scripts]\nhello = hello:main\n"
    for version in ("1.0", "2.0"):
        main = f"def main():\n    print('hello {version}')\n".encode()
        info = f"hello-{version}.dist-info"
        files = {"hello/__init__.py": main, f"{info}/entry_points.txt": script}
        files |= {f"hello/part{n}_{version[0]}.py": b"" for n in range(50)}
        wheels.pack(venv.packages, "hello", version, files)

    def said() -> str:
        return run([venv.top / "bin" / "hello"], venv.packages, env).strip()

    venv.install("hello==1.0")
    assert said() == "hello 1.0"
    first = workspace.checkpoint()
    venv.install("--upgrade", "hello")
    assert said() == "hello 2.0"
    second = workspace.checkpoint()
    # A partial restore with the whole environment named is the same as a whole one.
    workspace.call("restore", checkpoint=first, paths=["venv"])
    assert said() == "hello 1.0"
    venv.pip("check")
    workspace.restore(second)
    assert said() == "hello 2.0"
    assert changes(workspace) == (0, 0, 0)


# -- npm ----------------------------------------------------------------------------------------


class Npm:
    """npm without a network."""

    def __init__(self, env: dict[str, str], cache: Path) -> None:
        self.npm = need("npm")
        need("node")
        self.env = {**env, "npm_config_cache": os.fspath(cache), "npm_config_offline": "true"}
        quiet = ("audit", "fund", "update_notifier")
        self.env |= {f"npm_config_{name}": "false" for name in quiet}

    def __call__(self, cwd: Path, *words: str | Path) -> str:
        return run([self.npm, *words], cwd, self.env)

    def package(self, place: Path, name: str, code: str, **more: object) -> Path:
        """The tarball of a package that is made of one module."""
        directory = place / name
        directory.mkdir()
        manifest = {"name": name, "version": "1.0.0", "main": "index.js", **more}
        (directory / "package.json").write_text(json.dumps(manifest))
        (directory / "index.js").write_text(code)
        self(place, "pack", "--silent", f"./{name}")
        return place / f"{name}-1.0.0.tgz"


def test_npm_install(workspace: Mounted, plain: Path, env: dict[str, str], tmp_path: Path) -> None:
    npm = Npm(env, tmp_path / "cache")
    leaf = npm.package(plain, "leaf", "module.exports = n => n + 1;\n")
    twice = "const leaf = require('leaf'); module.exports = n => leaf(leaf(n));\n"
    branch = npm.package(plain, "branch", twice, dependencies={"leaf": f"file:{leaf}"})
    program = "#!/usr/bin/env node\nconsole.log(require('branch')(Number(process.argv[2])));\n"
    tool = npm.package(
        plain,
        "tool",
        program,
        bin={"add-two": "index.js"},
        dependencies={"branch": f"file:{branch}", "leaf": f"file:{leaf}"},
    )
    project = workspace.mountpoint / "project"
    project.mkdir()
    wanted = {"name": "project", "version": "1.0.0", "dependencies": {"tool": f"file:{tool}"}}
    (project / "package.json").write_text(json.dumps(wanted))
    empty = workspace.checkpoint()
    npm(project, "install")
    program_path = project / "node_modules" / ".bin" / "add-two"
    assert run([program_path, "40"], project, npm.env) == "42\n"
    assert sorted(os.listdir(project / "node_modules")) == [
        ".bin",
        ".package-lock.json",
        "branch",
        "leaf",
        "tool",
    ]
    installed = listing(project)
    checkpoint = workspace.checkpoint("installed")
    npm(project, "uninstall", "tool")
    assert not program_path.exists()
    workspace.restore(checkpoint)
    assert difference(installed, listing(project)) == []
    assert run([program_path, "1"], project, npm.env) == "3\n"
    npm(project, "ci")
    assert run([program_path, "2"], project, npm.env) == "4\n"
    workspace.restore(empty)
    assert os.listdir(project) == ["package.json"]
    npm(project, "install")
    assert run([program_path, "3"], project, npm.env) == "5\n"


def test_npm_install_of_npm(
    workspace: Mounted, plain: Path, env: dict[str, str], tmp_path: Path
) -> None:
    """A real program with its two hundred dependencies, which its tarball brings: npm itself."""
    npm = Npm(env, tmp_path / "cache")
    source = Path(npm.npm).resolve().parent.parent
    if not (source / "node_modules" / "semver").is_dir():
        pytest.skip("this npm does not bring its dependencies itself")
    tarball = plain / "npm.tgz"
    packing = ["tar", "--transform=s,^[.],package,", "-I", "gzip -1", "-C", os.fspath(source)]
    run([*packing, "-cf", tarball, "."], plain, env)
    project = workspace.mountpoint / "project"
    project.mkdir()
    (project / "package.json").write_text('{"name": "project", "version": "1.0.0"}')
    before = workspace.checkpoint()
    npm(project, "install", "--ignore-scripts", tarball)
    installed = project / "node_modules" / "npm"
    assert sum(len(files) for _, _, files in os.walk(installed)) > 1000
    expected = npm(plain, "--version")
    program = project / "node_modules" / ".bin" / "npm"
    assert run([program, "--version"], project, npm.env) == expected
    checkpoint = workspace.checkpoint()
    files = listing(project)
    run(["rm", "-rf", "node_modules"], project, env)
    workspace.restore(checkpoint)
    assert difference(files, listing(project)) == []
    workspace.restore(before)
    assert os.listdir(project) == ["package.json"]
