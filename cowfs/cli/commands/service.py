"""`cowfs service`: a workspace as a systemd user service."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import click

from cowfs.api.mounting import default_store
from cowfs.cli import output
from cowfs.cli.command import Directory, command
from cowfs.cli.context import Context
from cowfs.client import places
from cowfs.errors import NotADirectoryPathError, ServiceUnavailableError, UsageError

_UNIT = """\
[Unit]
Description=cowfs workspace {title}

[Service]
Type=notify
ExecStart={command} mount {base} --store {store} --foreground
KillMode=mixed
TimeoutStopSec=60
Restart=on-failure
RestartSec=0.2

[Install]
WantedBy=default.target
"""


@command(
    "service",
    examples=[
        ("cowfs service project", "print the unit"),
        ("cowfs service project --install", "mount it now and at every login"),
        ("cowfs service project --remove", "not any more; the workspace stays as it is"),
    ],
)
@click.argument("directory", metavar="DIR", type=Directory())
@click.option("--install", is_flag=True, help="Write the unit, enable and start it.")
@click.option("--remove", is_flag=True, help="Stop and disable it, remove the unit.")
def service(context: Context, directory: str, install: bool, remove: bool) -> None:
    """Let systemd mount DIR at login and start its daemon again when it is killed.

    Without systemd, `cowfs mount DIR --restart` does the second. To have it mounted before the
    first login: `loginctl enable-linger`.
    """
    if install and remove:
        raise UsageError(detail="--install and --remove exclude each other", command="service")
    base = context.path(directory)
    if not os.path.isdir(base):
        raise NotADirectoryPathError(path=base)
    registered = places.registered_store(base)
    store = registered or default_store(base)
    name = f"cowfs-{os.path.basename(default_store(base))}.service"
    path = os.path.join(_units(), name)
    text = unit(base, store)
    document = {"workspace": base, "unit": path, "text": text, "installed": install}
    if install:
        _systemctl("--version")
        os.makedirs(_units(), exist_ok=True)
        with open(path, "w", encoding="utf-8", errors="surrogateescape") as file:
            file.write(text)
        _systemctl("daemon-reload")
        _systemctl("enable", "--now", name)
        context.answer(document, f"{name} mounts {output.printable(base)} from now on")
    elif remove:
        _systemctl("disable", "--now", name)
        if os.path.exists(path):
            os.unlink(path)
        _systemctl("daemon-reload")
        context.answer(document, f"{name} is removed")
    else:
        context.answer(document, "\n".join(map(output.printable, text.splitlines())))


def unit(base: str, store: str) -> str:
    """The unit's text (systemd.service(5))."""
    program = shutil.which("cowfs") or os.path.join(os.path.dirname(sys.executable), "cowfs")
    return _UNIT.format(
        title=base.replace("%", "%%"),
        command=_quoted(program),
        base=_quoted(base),
        store=_quoted(store),
    )


def _quoted(text: str) -> str:
    """A word of a command line, as systemd.syntax(7) and systemd.service(5) want it."""
    for char, escaped in (("\\", "\\\\"), ('"', '\\"'), ("%", "%%"), ("$", "$$"), ("\n", "\\n")):
        text = text.replace(char, escaped)
    return f'"{text}"'


def _units() -> str:
    return os.path.join(places.xdg_directory("XDG_CONFIG_HOME", ".config"), "systemd", "user")


def _systemctl(*arguments: str) -> None:
    """Raises ServiceUnavailableError."""
    try:
        done = subprocess.run(
            ["systemctl", "--user", *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
    except OSError as error:
        raise ServiceUnavailableError(detail=f"systemctl: {error.strerror}") from None
    if done.returncode != 0:
        detail = done.stderr.strip() or f"systemctl ended with {done.returncode}"
        raise ServiceUnavailableError(detail=detail)
