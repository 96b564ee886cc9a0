"""`cowfs config`."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import click

from cowfs.cli import output
from cowfs.cli.command import Parameter, command
from cowfs.cli.context import Context
from cowfs.errors import ConfigError, StoreMissingError, UsageError
from cowfs.service import config as configuration
from cowfs.service.config import Config
from cowfs.service.settings import SETTINGS, setting


class Key(Parameter):
    """The key of a setting, or a value of one."""

    name = "key"

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[click.shell_completion.CompletionItem]:
        return [
            click.shell_completion.CompletionItem(key, help=found.about)
            for key, found in SETTINGS.items()
            if key.startswith(incomplete)
        ]


@command(
    "config",
    examples=[
        ("cowfs config", "all settings, their values and where they come from"),
        ("cowfs config checkpoints.profile batch", "automatic checkpoints by number of files"),
        ("cowfs config checkpoints.profile manual", "none"),
        ("cowfs config checkpoints.settle 10s", "one setting"),
        ("cowfs config --unset checkpoints.settle", "back to the profile's value"),
        ("cowfs config volatile.paths target node_modules", "several values"),
        ("cowfs config --edit", "the file, in an editor"),
    ],
)
@click.argument("key", required=False, type=Key())
@click.argument("value", nargs=-1, metavar="[VALUE]...")
@click.option("--unset", is_flag=True, help="Take KEY out of the file.")
@click.option("--edit", is_flag=True, help="Open the file in $VISUAL or $EDITOR.")
def config(
    context: Context, key: str | None, value: tuple[str, ...], unset: bool, edit: bool
) -> None:
    """Show or change the settings of a workspace: automatic checkpoints, retention, volatile paths.

    They are kept in config.toml in the store's directory. A mounted workspace takes a change over
    within a second. What is wrong in the file is told, and has its default.
    """
    store = Path(context.locate().store)
    if not store.is_dir():
        raise StoreMissingError(path=str(store))
    if unset and (key is None or value):
        raise UsageError(detail="--unset takes a KEY and no value", command="config")
    if edit and (key is not None or unset):
        raise UsageError(detail="--edit takes no KEY", command="config")
    if edit:
        _edit(store)
    if key is None:
        _show(context, store, configuration.read(store))
    elif value or unset:
        _show_one(context, configuration.change(store, key, None if unset else list(value)), key)
    else:
        setting(key)
        _show_one(context, configuration.read(store), key)


def _shown(found: Config, key: str) -> Any:
    return SETTINGS[key].kind.show(found.value(key))


def _text(value: Any) -> str:
    return ", ".join(value) or "none" if isinstance(value, list) else str(value)


def _show_one(context: Context, found: Config, key: str) -> None:
    value = _shown(found, key)
    document = {"key": key, "value": value, "source": found.sources[key]}
    context.answer(document, output.printable(_text(value)))


def _show(context: Context, store: Path, found: Config) -> None:
    rows = [
        {"key": key, "value": _shown(found, key), "source": source, "about": known.about}
        for (key, known), source in zip(SETTINGS.items(), found.sources.values(), strict=True)
    ]
    document = {"file": str(store / configuration.FILE), "settings": rows}
    if found.problems and context.json:
        document["problems"] = [str(problem) for problem in found.problems]
    lines = _table(rows)
    lines.append(f"in {store / configuration.FILE}")
    text = "\n".join(output.printable(line) for line in lines)
    if found.problems:
        for problem in found.problems[1:]:
            output.note(str(problem))
        context.answer_failed(document, text, found.problems[0])
    context.answer(document, text)


def _table(rows: list[dict[str, Any]]) -> list[str]:
    cells = [(row["key"], _text(row["value"]), row["source"], row["about"]) for row in rows]
    widths = [max(len(row[at]) for row in cells) for at in range(3)]
    return [
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[3]])
        for row in cells
    ]


def _edit(store: Path) -> None:
    """Let the user edit a copy; it takes the file's place if nothing is wrong with it."""
    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
    file = store / configuration.FILE
    with tempfile.TemporaryDirectory(prefix="cowfs-config-") as place:
        copy = Path(place) / configuration.FILE
        if file.exists():
            shutil.copyfile(file, copy)
        else:
            copy.write_text(configuration.template(), encoding="utf-8")
        try:
            done = subprocess.run(["sh", "-c", f'{editor} "$1"', editor, str(copy)], check=False)
        except OSError as error:
            raise UsageError(detail=f"the editor cannot be started: {error}") from None
        if done.returncode:
            raise ConfigError(detail=f"{editor} ended with {done.returncode}")
        data = copy.read_bytes()
    try:
        configuration.replace(store, data)
    except ConfigError:
        rejected = store / (configuration.FILE + ".rejected")
        rejected.write_bytes(data)
        output.note(f"what you have written is in {rejected}")
        raise
