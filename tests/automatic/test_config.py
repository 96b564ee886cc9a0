"""The configuration file: what is read, what is wrong, what is written."""

from __future__ import annotations

import stat
import threading
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cowfs.errors import ConfigError
from cowfs.service import config
from cowfs.service.config import FILE, Config
from cowfs.service.settings import DURATION, NUMBER, PROFILES, SETTINGS


def write(store: Path, text: str) -> None:
    (store / FILE).write_text(text)


def only_problem(found: Config) -> str:
    (problem,) = found.problems
    return str(problem)


def test_without_a_file_everything_has_its_default(tmp_path: Path) -> None:
    found = config.read(tmp_path)
    assert found.problems == ()
    assert set(found.sources.values()) == {"default"}
    assert found.checkpoints.profile == "exploratory"
    assert found.checkpoints.before_deletion == 50
    assert found.retention.profile == "development"
    assert found.retention.keep_days == 30
    assert found.volatile.paths == ()
    assert list(tmp_path.iterdir()) == []


def test_the_profiles_that_were_asked_for(tmp_path: Path) -> None:
    def policy(name: str) -> Any:
        write(tmp_path, f'[checkpoints]\nprofile = "{name}"\n')
        return config.read(tmp_path).checkpoints

    assert set(PROFILES["checkpoints"]) == {"exploratory", "batch", "parallel", "manual"}
    assert policy("batch").every_files == 100
    assert policy("batch").settle == 0
    assert policy("exploratory").settle > 0
    manual = policy("manual")
    assert manual.settle == manual.interval == manual.every_files == manual.before_deletion == 0
    write(tmp_path, '[retention]\nprofile = "production"\n')
    assert config.read(tmp_path).retention.keep_days == 90


def test_a_single_setting_is_stronger_than_the_profile(tmp_path: Path) -> None:
    write(tmp_path, '[checkpoints]\nprofile = "batch"\nevery_files = 7\n')
    found = config.read(tmp_path)
    assert found.checkpoints.every_files == 7
    assert found.sources["checkpoints.every_files"] == "file"
    assert found.sources["checkpoints.settle"] == "profile"
    assert found.sources["checkpoints.burst"] == "default"


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ('"30s"', 30.0),
        ('"10m"', 600.0),
        ('"2 h"', 7200.0),
        ('"1d"', 86400.0),
        ('"250ms"', 0.25),
        ('"off"', 0.0),
        ("5", 5.0),
        ("0.5", 0.5),
    ],
)
def test_durations(tmp_path: Path, value: str, seconds: float) -> None:
    write(tmp_path, f"checkpoints.settle = {value}")
    found = config.read(tmp_path)
    assert found.problems == ()
    assert found.checkpoints.settle == seconds


@pytest.mark.parametrize("value", ['"soon"', "-1", "true", "[]", "nan", "inf", '"9999999w"', '""'])
def test_what_is_no_duration(tmp_path: Path, value: str) -> None:
    write(tmp_path, f"[checkpoints]\nsettle = {value}\nburst = 3\n")
    found = config.read(tmp_path)
    assert "checkpoints.settle cannot be" in only_problem(found)
    assert 'such as "30s"' in only_problem(found)
    assert found.checkpoints.settle == SETTINGS["checkpoints.settle"].default
    assert found.checkpoints.burst == 3  # the others hold


@pytest.mark.parametrize("value", ['"x"', "1.5", "-1", "true", "99999999999999999999", "{}"])
def test_what_is_no_number(tmp_path: Path, value: str) -> None:
    write(tmp_path, f"[retention]\nkeep_last = {value}\n")
    found = config.read(tmp_path)
    assert "retention.keep_last cannot be" in only_problem(found)
    assert found.retention.keep_last == SETTINGS["retention.keep_last"].default


@pytest.mark.parametrize("value", ['"target"', "[1]", '[""]', '["/etc"]', '["../x"]', '["a//b"]'])
def test_what_are_no_paths(tmp_path: Path, value: str) -> None:
    write(tmp_path, f"[volatile]\npaths = {value}\n")
    found = config.read(tmp_path)
    assert "volatile.paths cannot be" in only_problem(found)
    assert found.volatile.paths == ()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('[checkpoints]\nsettel = "1s"', "'checkpoints.settle' perhaps?"),
        ("[checkpoint]\nburst = 1", "'checkpoints' perhaps?"),
        ('[checkpoints]\nprofile = "bach"', "it is exploratory, batch, parallel, manual"),
        ("checkpoints = 3", "must be a section"),
        ("x = ", "is not TOML"),
        ("a = " + "[" * 100_000, "is not TOML"),
    ],
)
def test_what_is_wrong_is_told(tmp_path: Path, text: str, told: str) -> None:
    write(tmp_path, text)
    found = config.read(tmp_path)
    assert told in only_problem(found)
    assert found.checkpoints == config.read(tmp_path / "nowhere").checkpoints


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(b"\xff\xfe")
    assert "is not TOML" in only_problem(config.read(tmp_path))
    (tmp_path / FILE).write_bytes(b"#" * (1 << 21))
    assert "is longer than" in only_problem(config.read(tmp_path))
    (tmp_path / FILE).unlink()
    (tmp_path / FILE).mkdir()
    assert "cannot be read" in only_problem(config.read(tmp_path))


@given(st.binary(max_size=200))
def test_no_file_raises(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    store = tmp_path_factory.getbasetemp()
    (store / FILE).write_bytes(data)
    assert isinstance(config.read(store), Config)


def test_setting_one_keeps_comments_and_order(tmp_path: Path) -> None:
    before = "# mine\n[retention] # kept\nkeep_last = 5 # five\n\n[checkpoints]\nburst = 2\n"
    write(tmp_path, before)
    found = config.change(tmp_path, "retention.keep_last", ["8"])
    assert found.retention.keep_last == 8
    text = (tmp_path / FILE).read_text()
    assert text == before.replace("keep_last = 5", "keep_last = 8")
    config.change(tmp_path, "checkpoints.settle", ["2m"])
    assert (tmp_path / FILE).read_text() == text + 'settle = "2m"\n'
    config.change(tmp_path, "checkpoints.settle", None)
    assert (tmp_path / FILE).read_text() == text


@pytest.mark.parametrize("text", ["", "checkpoints.burst = 1\n", "checkpoints = { burst = 1 }\n"])
def test_setting_one_in_any_style_of_file(tmp_path: Path, text: str) -> None:
    write(tmp_path, text)
    found = config.change(tmp_path, "checkpoints.burst", ["3"])
    found = config.change(tmp_path, "checkpoints.settle", ["7s"])
    assert (found.checkpoints.burst, found.checkpoints.settle) == (3, 7.0)
    assert found.problems == ()


def test_the_file_that_is_made_is_for_its_owner_alone(tmp_path: Path) -> None:
    config.change(tmp_path, "volatile.paths", ["target/", "./node_modules", "a/b/", "off"])
    assert stat.S_IMODE((tmp_path / FILE).stat().st_mode) == 0o600
    assert config.read(tmp_path).volatile.paths == ("target", "node_modules", "a/b")
    assert not (tmp_path / (FILE + ".new")).exists()


def test_what_cannot_be_set_changes_nothing(tmp_path: Path) -> None:
    for key, words in (("checkpoints.settle", ["x"]), ("nothing", ["1"]), ("retention", ["1"])):
        with pytest.raises(ConfigError):
            config.change(tmp_path, key, words)
    assert not (tmp_path / FILE).exists()
    config.change(tmp_path, "checkpoints.settle", None)
    assert not (tmp_path / FILE).exists()
    write(tmp_path, "this is no toml")
    with pytest.raises(ConfigError):
        config.change(tmp_path, "checkpoints.settle", ["1s"])
    assert (tmp_path / FILE).read_text() == "this is no toml"


def test_replacing_the_file(tmp_path: Path) -> None:
    config.replace(tmp_path, b"[checkpoints]\nburst = 4\n")
    with pytest.raises(ConfigError):
        config.replace(tmp_path, b"[checkpoints]\nburst = -4\n")
    assert config.read(tmp_path).checkpoints.burst == 4


def test_writers_at_the_same_time(tmp_path: Path) -> None:
    keys = [key for key in SETTINGS if SETTINGS[key].kind is NUMBER]
    threads = [threading.Thread(target=config.change, args=(tmp_path, key, ["42"])) for key in keys]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = config.read(tmp_path)
    assert [found.value(key) for key in keys] == [42] * len(keys)


def test_what_is_shown_can_be_set() -> None:
    """Each default, written as it is shown, is the same value."""
    for key, known in SETTINGS.items():
        shown = known.kind.show(known.default)
        assert known.kind.take(shown) == known.default, key
    text = config.template()
    settings = [line[2:] for line in text.splitlines() if " = " in line]
    assert len(settings) == len(SETTINGS)
    assert tomllib.loads(text) == {
        "checkpoints": {},
        "retention": {},
        "volatile": {},
        "sessions": {},
        "mcp": {},
    }
    for line in settings:
        tomllib.loads(line)


@given(st.floats(0, 1e6))
def test_durations_are_shown_as_what_they_are(seconds: float) -> None:
    shown = DURATION.show(seconds)
    assert DURATION.take(shown) == pytest.approx(seconds, rel=1e-6, abs=1e-3)
