"""`cowfs config`."""

from __future__ import annotations

from pathlib import Path

import pytest

from cowfs.service.settings import SETTINGS
from tests.cli.command import Cowfs


@pytest.fixture(autouse=True)
def quick(cowfs: Cowfs) -> None:
    cowfs.in_process = True


def test_all_settings(cowfs: Cowfs, mounted: Path) -> None:
    document = cowfs.ok("config")
    assert [row["key"] for row in document["settings"]] == list(SETTINGS)
    assert {row["source"] for row in document["settings"]} == {"default"}
    text = cowfs.says("config")
    assert text.splitlines()[0].split()[:3] == ["checkpoints.profile", "exploratory", "default"]
    assert text.splitlines()[-1] == f"in {document['file']}"
    store = Path(cowfs.ok("status")["store"])
    assert document["file"] == str(store / "config.toml")
    assert not Path(document["file"]).is_relative_to(mounted)


def test_one_setting(cowfs: Cowfs, mounted: Path) -> None:
    key = "checkpoints.settle"
    assert cowfs.says("config", key, "10s") == "10s\n"
    assert cowfs.ok("config", key) == {
        "ok": True,
        "key": key,
        "value": "10s",
        "source": "file",
    }
    assert cowfs.says("config", "--unset", key) == "3s\n"
    cowfs.ok("config", "volatile.paths", "target/", "node_modules")
    assert cowfs.ok("config", "volatile.paths")["value"] == ["target", "node_modules"]
    cowfs.ok("config", "checkpoints.profile", "manual")
    assert cowfs.ok("config", key)["source"] == "profile"


def test_what_is_wrong(cowfs: Cowfs, mounted: Path) -> None:
    error = cowfs.fails("config", "checkpoints.profil")
    assert error["code"] == "COWFS_CONFIG"
    assert "'checkpoints.profile' perhaps?" in error["message"]
    assert "batch" in cowfs.fails("config", "checkpoints.profile", "x")["message"]
    assert cowfs.fails("config", "--unset")["code"] == "COWFS_USAGE"
    assert cowfs.fails("config", "--edit", "x")["code"] == "COWFS_USAGE"
    file = Path(cowfs.ok("config")["file"])
    file.write_text("[checkpoints]\nburst = 3\nsettle = 'x'\n")
    result = cowfs.run("config")
    assert result.code == 11
    assert "checkpoints.settle cannot be 'x'" in result.err
    assert "checkpoints.burst" in result.out
    document = cowfs.run("config", "--json").document
    assert document["ok"] is False
    assert len(document["settings"]) == len(SETTINGS)


def test_a_broken_file_is_told_wherever_one_looks(cowfs: Cowfs, mounted: Path) -> None:
    Path(cowfs.ok("config")["file"]).write_text("not toml")
    cowfs.ok("unmount", mounted, cwd=cowfs.top)
    (problem,) = cowfs.ok("status")["health"]["problems"]
    assert problem["kind"] == "config"
    cowfs.ok("mount", mounted)
    (problem,) = cowfs.ok("status")["health"]["problems"]
    assert "is not TOML" in problem["detail"]
    assert "not TOML" in cowfs.says("status")
    findings = cowfs.run("doctor", "--json").document["findings"]
    assert any("is not TOML" in row["detail"] for row in findings)


def test_in_an_editor(cowfs: Cowfs, mounted: Path) -> None:
    cowfs.env["VISUAL"] = "sed -i 's/^# burst = 1/burst = 5/'"
    cowfs.ok("config", "--edit")
    assert cowfs.ok("config", "checkpoints.burst")["value"] == 5
    cowfs.env["VISUAL"] = "sed -i 's/^burst = 5/burst = x/'"
    assert cowfs.fails("config", "--edit")["code"] == "COWFS_CONFIG"
    rejected = Path(cowfs.ok("config")["file"] + ".rejected")
    assert "burst = x" in rejected.read_text()
    cowfs.env["VISUAL"] = "false"
    assert cowfs.fails("config", "--edit")["code"] == "COWFS_CONFIG"
    assert cowfs.ok("config", "checkpoints.burst")["value"] == 5


def test_a_directory_that_is_no_workspace(cowfs: Cowfs, project: Path) -> None:
    assert cowfs.fails("config", cwd=project)["code"] == "COWFS_NOT_A_WORKSPACE"
