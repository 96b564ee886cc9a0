"""The MCP server: its tools and what it says of itself.

Stdout is the wire: nothing here prints.

Threading: the package `mcp` runs each tool in a thread of its own; what they share is immutable.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations
from pydantic import Field

from cowfs import __version__
from cowfs.api.workspace import Workspace
from cowfs.errors import CowfsError, NotMountedError, as_cowfs_error
from cowfs.mcp import texts
from cowfs.service import config
from cowfs.tree.patch import is_binary

_MOST_ROWS = 100
_LARGEST_FILE = 8 << 20
"""Bytes of a file that `show` reads."""

_LOOKS = ToolAnnotations(
    read_only_hint=True, destructive_hint=False, idempotent_hint=True, open_world_hint=False
)
_ADDS = ToolAnnotations(
    read_only_hint=False, destructive_hint=False, idempotent_hint=False, open_world_hint=False
)
_REPLACES = ToolAnnotations(
    read_only_hint=False, destructive_hint=True, idempotent_hint=False, open_world_hint=False
)

_ABOUT = """\
cowfs records every change to the files of this workspace, whatever program makes it. A checkpoint \
keeps the present state in milliseconds; make one before deleting, rewriting or generating much. \
States are named by a checkpoint's id (or its first digits), a label, @ (now), @~1 (the last \
checkpoint), @~2, or @{10 minutes ago}. Paths are relative to the top of the workspace."""
_MAY_RESTORE = """ `restore` takes files back to a checkpoint; look at `preview` first. The state \
before is kept as a checkpoint, too."""
_MAY_NOT_RESTORE = """ Files cannot be restored with these tools: `cowfs restore CHECKPOINT` in a \
terminal does that, and is the user's to type. Whoever wants to allow it starts the server with \
`cowfs mcp --allow-restore`."""

Named = Annotated[str, Field(description="a checkpoint: id, label, @~1, @{10 minutes ago}")]
Inside = Annotated[
    list[str] | None, Field(description="only these files or directories, from the top")
]
Offset = Annotated[
    int, Field(ge=0, description="where to go on in a long answer, as its last line says")
]


def build(directory: str, *, allow_restore: bool) -> MCPServer:
    """The server for the workspace that holds a directory; the directory may become one later."""
    server = MCPServer(
        "cowfs",
        version=__version__,
        log_level="WARNING",
        instructions=_ABOUT + (_MAY_RESTORE if allow_restore else _MAY_NOT_RESTORE),
    )
    tools = _Tools(directory)
    offered: list[tuple[Callable[..., str], ToolAnnotations]] = [
        (tools.status, _LOOKS),
        (tools.checkpoint, _ADDS),
        (tools.log, _LOOKS),
        (tools.changes, _LOOKS),
        (tools.diff, _LOOKS),
        (tools.preview, _LOOKS),
        (tools.show, _LOOKS),
    ]
    if allow_restore:
        offered.append((tools.restore, _REPLACES))
    for tool, hints in offered:
        server.add_tool(
            _told(tool),
            description=" ".join((tool.__doc__ or "").split()),
            annotations=hints,
            structured_output=False,
        )
    return server


def serve(directory: str, *, allow_restore: bool) -> None:
    """Serve on stdin and stdout until stdin ends. allow_restore: offer `restore`; the workspace's
    setting `mcp.restore` does that, too."""
    build(directory, allow_restore=allow_restore or _allowed(directory)).run()


def _allowed(directory: str) -> bool:
    try:
        with Workspace.open(directory) as workspace:
            return config.read(Path(workspace.store)).mcp.restore
    except CowfsError:
        return False  # what is wrong is said by the tools


def _told(tool: Callable[..., str]) -> Callable[..., str]:
    """The tool, whose errors the model sees with their code and hint."""

    @functools.wraps(tool)
    def wrapped(*arguments: object, **named: object) -> str:
        try:
            return tool(*arguments, **named)
        except Exception as error:
            known = as_cowfs_error(error)
            raise ToolError(f"{known.code}: {known}\nhint: {known.hint_text}") from error

    return wrapped


class _Tools:
    """The tools, each with its workspace as it is when it is called. Docstrings are for the
    model."""

    def __init__(self, directory: str) -> None:
        self._directory = directory

    def status(self) -> str:
        """Show whether the workspace is mounted (being recorded), what changed since the last
        checkpoint, and whether all is well."""
        with self._open() as workspace:
            return self._noted(workspace, texts.status(workspace.status()))

    def checkpoint(
        self,
        message: Annotated[str, Field(max_length=2000, description="what this state is")] = "",
        label: Annotated[str, Field(description="a unique name for it")] = "",
        if_changed: Annotated[
            bool, Field(description="make none when nothing has changed since the last one")
        ] = False,
    ) -> str:
        """Keep the present state of all files, so that one can come back to it. Takes milliseconds,
        whatever the size of the project."""
        with self._open() as workspace:
            if not workspace.mounted:
                # It would not have what was changed since: nothing is recorded.
                raise NotMountedError(path=workspace.path)
            made = workspace.checkpoint(message, label, if_changed=if_changed)
        return ("" if made.made else "nothing has changed since ") + texts.checkpoint(made)

    def log(
        self,
        limit: Annotated[int, Field(ge=1, le=_MOST_ROWS)] = 20,
        before: Annotated[
            str, Field(description="only checkpoints that are older than this one")
        ] = "",
    ) -> str:
        """List the checkpoints, newest first: id, time, kind, what changed since the one before
        (+created ~modified -deleted), label and message."""
        with self._open() as workspace:
            rows = workspace.log(limit + 1, before or None)
            return self._noted(workspace, texts.log(rows, limit))

    def changes(
        self,
        paths: Inside = None,
        since: Annotated[
            str, Field(description="only what was done after this checkpoint or time (2 h ago)")
        ] = "",
        until: Annotated[str, Field(description="only what was done before this one")] = "",
        by: Annotated[
            str, Field(description="only by this program, pid, user, or session of an agent")
        ] = "",
        outside: Annotated[
            bool, Field(description="only by others, while an agent's session was going on")
        ] = False,
        limit: Annotated[int, Field(ge=1, le=_MOST_ROWS)] = 30,
        offset: Offset = 0,
    ) -> str:
        """Tell who changed what, newest last: which process, by its command line, created, changed,
        removed or renamed which files."""
        with self._open() as workspace:
            found = workspace.changes(
                paths or (),
                since=since or None,
                until=until or None,
                by=by or None,
                outside=outside,
                limit=limit,
            )
            text = "\n".join(texts.activity(row) for row in found)
            return self._noted(workspace, texts.page(text or "no changes are known", offset))

    def diff(
        self,
        a: Annotated[str, Field(description="the older state")] = "@~1",
        b: Annotated[str, Field(description="the newer state; @ is now")] = "@",
        paths: Inside = None,
        form: Annotated[
            Literal["names", "lines", "patch"],
            Field(description="names: a letter and the path; lines: and how many lines; patch"),
        ] = "names",
        offset: Offset = 0,
    ) -> str:
        """Show what differs between two states of the files; by default what changed since the last
        checkpoint. A added, D deleted, M modified, P only attributes, R renamed, T another type."""
        with self._open() as workspace:
            if form == "patch":
                limit = _enough(offset)
                found = workspace.patch(a, b, paths or (), limit=limit)
                text = found.data.decode("utf-8", "backslashreplace")
                if found.complete:
                    text += "".join(
                        f"not in the patch: {texts.name(path)}: {why}\n"
                        for path, why in found.omitted
                    )
                paged = texts.page(text or "no differences", offset, more=not found.complete)
            else:
                rows = workspace.diff(a, b, paths or (), lines=form == "lines").changes
                paged = texts.page(texts.changes(rows) or "no differences", offset)
            return self._noted(workspace, paged)

    def preview(
        self,
        checkpoint: Named,
        paths: Inside = None,
        exclude: Annotated[
            list[str] | None, Field(description="patterns of what would be left alone")
        ] = None,
        offset: Offset = 0,
    ) -> str:
        """Show what restoring a checkpoint would change in the files, without doing it. A: would
        appear, D: would go, M: would be as it was then."""
        with self._open() as workspace:
            found = workspace.preview(checkpoint, paths or (), exclude=exclude or (), lines=True)
            lines = [
                f"restoring {texts.checkpoint(found.checkpoint)}",
                f"would make {len(found.changes)} changes to the present state,"
                f" which is {found.state}",
                *map(texts.change, found.changes),
            ]
            if found.left_alone:
                names = ", ".join(map(texts.name, found.left_alone))
                lines.append(f"volatile, would be left alone: {names}")
            return self._noted(workspace, texts.page("\n".join(lines), offset))

    def show(
        self,
        checkpoint: Named,
        path: Annotated[str, Field(description="the file, from the top of the workspace")],
        offset: Offset = 0,
    ) -> str:
        """Show a file's content as it was at a checkpoint, also when it is gone now."""
        with self._open() as workspace:
            data = workspace.show(path, checkpoint, limit=_LARGEST_FILE + 1)
            if len(data) > _LARGEST_FILE or is_binary(data):
                size = f"{len(data):,} bytes"
                if len(data) > _LARGEST_FILE:
                    size = f"more than {_LARGEST_FILE:,} bytes"
                text = (
                    f"{size}, not text or too large to show; "
                    f"`cowfs show {checkpoint}:{path} > FILE` writes it to a file"
                )
            else:
                text = texts.page(data.decode("utf-8", "backslashreplace"), offset)
            return self._noted(workspace, text or "(an empty file)")

    def restore(
        self,
        checkpoint: Named,
        paths: Inside = None,
        exclude: Annotated[
            list[str] | None, Field(description="patterns of what is left alone")
        ] = None,
        expect: Annotated[
            str, Field(description="the state that a preview told: refuse if others changed it")
        ] = "",
    ) -> str:
        """Make the files, all or only some, what they were at a checkpoint. What was changed since
        is kept as a checkpoint of its own, whose id is told. The conversation stays as it is."""
        with self._open() as workspace:
            if not workspace.mounted:
                raise NotMountedError(path=workspace.path)
            done = workspace.restore(
                checkpoint, paths or (), exclude=exclude or (), expect=expect or None
            )
            return texts.restored(done)

    def _open(self) -> Workspace:
        return Workspace.open(self._directory)

    def _noted(self, workspace: Workspace, text: str) -> str:
        """The text, after a note that nothing is recorded when that is so."""
        if workspace.mounted:
            return text
        return (
            "(the workspace is not mounted: nothing is being recorded. This is what was recorded "
            f"before; `cowfs mount {workspace.path}` goes on.)\n{text}"
        )


def _enough(offset: int) -> int:
    """Bytes that surely have the page at an offset: a character has at most four, or becomes four
    (`\\xff`) when it is no text."""
    return 4 * offset + 4 * texts.MOST_BYTES
