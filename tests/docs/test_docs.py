"""The documentation and the code say the same."""

from __future__ import annotations

import ast
import dataclasses
import re
import shlex
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import click
import msgspec
import pytest
from click.testing import CliRunner

from cowfs import errors
from cowfs.cli.app import COMMANDS, cli
from cowfs.daemon.autosaver import Autosaver
from cowfs.daemon.control import Request
from cowfs.daemon.methods import Methods
from cowfs.daemon.process import Daemon
from cowfs.format import audit, copying, records, sessions
from cowfs.format.records import CheckpointRecord
from cowfs.mount.operations import Operations
from cowfs.service.apply import Applied
from cowfs.service.engine import LocalEngine
from cowfs.service.housekeeping import Cleaned
from cowfs.service.restore import Restored
from cowfs.service.sealing import Sealed
from cowfs.service.sessions.conversation import Continuation
from cowfs.service.sessions.recording import Event
from cowfs.service.settings import SETTINGS, Setting
from cowfs.service.shrinking import Shrunk
from cowfs.volume.history import Author
from tests.support.volumes import Rig

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
_AREAS = {"C": 5, "K": 6, "R": 8, "S": 5, "I": 4, "B": 6, "O": 5}
ROWS = [f"{area}{number}" for area, most in _AREAS.items() for number in range(1, most + 1)]
"""The rows of features.md."""


def page(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def section(text: str, heading: str) -> str:
    """What stands below a heading, up to the next one of its level or above."""
    level = heading.split(" ")[0]
    found = re.search(
        rf"^{re.escape(heading)}\n(.*?)(?=^#{{1,{len(level)}}} |\Z)", text, re.M | re.S
    )
    assert found, f"no heading {heading!r}"
    return found[1]


def rows(text: str) -> Iterator[list[str]]:
    """The rows of all tables, without the lines below their headings."""
    for line in text.splitlines():
        if line.startswith("|") and not re.match(r"\|[ :-]+\|", line):
            yield [cell.strip() for cell in line.strip()[1:-1].split("|")]


def error_classes() -> dict[str, type[errors.CowfsError]]:
    """Code to class."""
    found: dict[str, type[errors.CowfsError]] = {}
    for value in vars(errors).values():
        if isinstance(value, type) and issubclass(value, errors.CowfsError):
            known = found.setdefault(value.code, value)
            assert issubclass(value, known), f"two classes have the code {value.code}"
    return found


# -- errors.md ----------------------------------------------------------------------------------


def test_the_table_of_errors_is_that_of_the_code() -> None:
    documented = {
        cells[0].strip("`"): cells[1:]
        for cells in rows(section(page("docs/errors.md"), "## All codes"))
        if cells[0].startswith("`COWFS_")
    }
    classes = error_classes()
    assert documented.keys() == classes.keys()
    for code, (exit_code, _errno, message, hint, when) in documented.items():
        kind = classes[code]
        wanted = f"| `{code}` | {kind.exit_code} | ... | {kind.message} | {kind.hint} | ... |"
        assert f"| `{code}` | {exit_code} | ... | {message} | {hint} | ... |" == wanted
        assert when, code


def test_every_exit_code_has_one_meaning() -> None:
    text = section(page("docs/errors.md"), "## Exit codes")
    meanings: dict[int, str] = {}
    for cells in rows(text):
        first, _, last = cells[0].partition(" to ")
        if first.isdigit():
            meanings |= dict.fromkeys(range(int(first), int(last or first) + 1), cells[1])
    shared = re.search(r"Codes (.+) are shared", text)
    assert shared
    may_be_shared = {int(number) for number in re.findall(r"\d+", shared[1])}
    used = Counter(kind.exit_code for kind in error_classes().values())
    assert used.keys() <= meanings.keys()
    assert {code for code, classes in used.items() if classes > 1} == may_be_shared


# -- protocol.md --------------------------------------------------------------------------------


def methods() -> dict[str, Any]:
    """The table of methods, without a daemon."""
    return Methods.__new__(Methods).table()


def test_every_method_is_in_the_protocol() -> None:
    text = page("docs/protocol.md")
    listed = [cells[0] for cells in rows(section(text, "## Methods")) if cells[0].startswith("[`")]
    assert {re.sub(r"\[`([\w.]+)`.*", r"\1", cell) for cell in listed} == methods().keys()
    for method in methods():
        assert f'"method": "{method}"' in text, f"no example of {method}"


def fields(heading: str) -> set[str]:
    """The names in the first column of the tables below a heading of protocol.md."""
    text = section(page("docs/protocol.md"), heading)
    return {name for cells in rows(text) for name in re.findall(r"`(\w+)`", cells[0])}


def test_every_field_is_in_the_protocol(volume: Rig, tmp_path: Path) -> None:
    engine, operation = LocalEngine(volume.volume), threading.RLock()
    operations = cast(Operations, SimpleNamespace(before_removal=None))
    saver = Autosaver(engine, operations, operation, tmp_path, Author(), enabled=False)
    collector = SimpleNamespace(state=lambda: None)
    daemon = SimpleNamespace(
        engine=engine, operation=operation, autosaver=saver, collector=collector
    )
    report = Methods(cast(Daemon, daemon)).status(Request({}, Author(), lambda _: None))
    assert report.keys() | {"flush"} == fields("### status")
    checkpoint = {field.name for field in msgspec.structs.fields(CheckpointRecord)}
    assert checkpoint <= fields("## Methods")
    assert Applied(0).to_json().keys() | {"dry_run"} == fields("### apply")


def test_every_field_of_the_other_results_is_in_the_protocol() -> None:
    assert Sealed().to_json().keys() | {"paths", "rate", "idle"} == fields("### seal")
    assert Cleaned().to_json().keys() | {"rules", "idle"} == fields("### gc")
    assert Shrunk().to_json().keys() == fields("### compact")
    continuation = {field.name for field in dataclasses.fields(Continuation)}
    parameters = {"checkpoint", "paths", "exclude", "volatile", "conversation", "expect"}
    restored = {field.name for field in dataclasses.fields(Restored)} - {"seconds"}
    assert restored | {"daemon_seconds"} | parameters | continuation == fields("### restore")
    event = {field.name for field in msgspec.structs.fields(Event)}
    assert event <= fields("### session.event")


# -- README.md, guide.md, administration.md -----------------------------------------------------


def examples() -> list[list[str]]:
    """The words of each `cowfs` command line in the code blocks and tables of the users' pages."""
    text = "\n".join(map(page, ("README.md", "docs/guide.md", "docs/administration.md")))
    lines = [line.strip() for line in text.splitlines() if line.startswith("    ")]
    for block in re.findall(r"^```\w*\n(.*?)^```", text, re.M | re.S):
        lines += block.splitlines()
    lines += re.findall(r"`(cowfs [^`]+)`", text)
    found = []
    for line in lines:
        start = re.match(r"(?:\$ )?(?:sudo )?(cowfs .*)", line)
        if start:
            command = re.split(r" [|>] |\s+#", start[1])[0]
            found.append(shlex.split(command)[1:])
    return found


def test_every_command_of_the_guide_exists() -> None:
    context = click.Context(cli)
    seen = set()
    for words in examples():
        if words[0] == "-C":
            words = words[2:]
        if words[0].startswith("-"):
            assert words[0] in ("--version", "--help")
            continue
        command = cli.get_command(context, words[0])
        assert command is not None, words
        seen.add(words[0])
        parameters = command.params
        options = {option for p in parameters for option in [*p.opts, *p.secondary_opts]}
        used = {word.partition("=")[0] for word in words[1:] if re.match(r"--?[a-z]", word)}
        assert used <= options | {"--help"}, words
    assert seen == set(COMMANDS), "the guide shows every command"


def test_every_setting_is_in_the_table() -> None:
    cells = rows(section(page("docs/administration.md"), "## Settings"))
    documented = [tuple(row) for row in cells if row[0].startswith("`")]
    assert documented == [
        (f"`{setting.key}`", shown(setting), setting.about) for setting in SETTINGS.values()
    ]


def shown(setting: Setting) -> str:
    """Its default, as `cowfs config` shows it."""
    value = setting.kind.show(setting.default)
    return (", ".join(value) or "none") if isinstance(value, list) else str(value)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command: str) -> None:
    result = CliRunner().invoke(cli, [command, "--help"])
    assert result.exit_code == 0
    assert result.output.startswith(f"Usage: cowfs {command}")


# -- format.md ----------------------------------------------------------------------------------

_RECORDS: dict[str, list[type[msgspec.Struct]]] = {
    "epoch": [records.EpochRecord],
    "checkpoint": [records.CheckpointRecord],
    "operation": [records.OperationRecord, audit.Operation],
    "branch": [records.BranchRecord],
    "format": [records.FormatRecord],
    "process": [audit.ProcessRecord],
    "audit": [audit.AuditRecord],
    "session": [sessions.SessionRecord],
    "transcript": [sessions.TranscriptRecord],
    "context": [sessions.ContextRecord],
    "copying": [copying.CopyingRecord],
}
"""By the name in the head of the table, in the order of the page."""


def test_records_have_the_fields_of_the_format() -> None:
    documented: dict[str, list[list[str]]] = {}
    head = r"^\| \| (\w+) \|(?: default \|)? meaning \|\n\| ---.*\n((?:\|.*\n)+)"
    for name, table in re.findall(head, page("docs/format.md"), re.M):
        cells = list(rows(table))
        assert [row[0] for row in cells] == [str(n) for n in range(len(cells))], name
        documented.setdefault(name, []).append([row[1] for row in cells])
    assert documented == {
        name: [[field.name for field in msgspec.structs.fields(kind)] for kind in kinds]
        for name, kinds in _RECORDS.items()
    }


# -- architecture.md ----------------------------------------------------------------------------


def test_every_folder_of_the_code_is_in_the_architecture() -> None:
    layers = section(page("docs/architecture.md"), "## Layers")
    for file in (ROOT / "cowfs").rglob("*/__init__.py"):
        assert f"`{file.parent.name}`" in layers, file.parent


def test_every_file_of_the_architecture_exists() -> None:
    """Those that are named with their folder, or after one: `volume/namespace.py`, `data.py`."""
    for row in rows(section(page("docs/architecture.md"), "## If you want to ...")):
        folder = Path()
        for name in re.findall(r"`([\w*/.-]+(?:\.py|/))`", row[-1]):
            path = Path(name.removeprefix("cowfs/"))
            folder = path.parent if path.parent.name else folder
            places = (ROOT, ROOT / "cowfs", ROOT / "cowfs" / folder)
            assert any(list(place.glob(str(path))) for place in places), f"{row[0]}: {name}"


# -- links --------------------------------------------------------------------------------------


def anchors(text: str) -> set[str]:
    """The anchors that a page's headings get, as GitHub makes them."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)
    found = set()
    for title in re.findall(r"^#+ (.+)$", text, re.M):
        plain = re.sub(r"[^\w\- ]", "", title.replace("`", "").lower())
        found.add(plain.replace(" ", "-"))
    return found


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(path: Path) -> None:
    text = re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.M | re.S)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        file = (path.parent / name).resolve() if name else path
        assert file.exists(), target
        if anchor and file.suffix == ".md":
            assert anchor in anchors(file.read_text(encoding="utf-8")), target


# -- features.md --------------------------------------------------------------------------------


def names_of_tests(file: Path) -> set[str]:
    """The names of the test functions of a file, those in classes too."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    return {
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.startswith("test_")
    }


def test_every_feature_is_proved_by_tests_that_exist() -> None:
    found = [cells for cells in rows(page("docs/features.md")) if cells[0] in ROWS]
    assert [cells[0] for cells in found] == ROWS
    for row, feature, status, left, proof in found:
        assert feature, row
        assert status in ("done", "part", "not yet"), row
        references = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", proof)
        assert bool(references) == (status != "not yet"), row
        assert bool(left) == (status == "part"), f"{row}: say what is left, of a part only"
        for file, name in references:
            assert (ROOT / file).exists(), f"{row}: {file}"
            assert name in names_of_tests(ROOT / file), f"{row}: {file}::{name}"


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_test_that_a_page_names_exists(path: Path) -> None:
    for file, name in re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", path.read_text(encoding="utf-8")):
        assert (ROOT / file).exists(), file
        assert name in names_of_tests(ROOT / file), f"{file}::{name}"
