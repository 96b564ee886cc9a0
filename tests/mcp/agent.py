"""An agent that uses `cowfs mcp`: the client of the package `mcp`, on stdin and stdout."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

from anyio.from_thread import start_blocking_portal
from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.types import InitializeResult, TextContent, Tool

from tests.cli.command import Cowfs

_SECONDS = 60


class Agent:
    """A session with a server. tools: what it offers, by name."""

    def __init__(self, portal: Any, session: ClientSession, said: InitializeResult) -> None:
        self._portal = portal
        self._session = session
        self.said = said
        self.tools: dict[str, Tool] = {
            tool.name: tool for tool in portal.call(session.list_tools).tools
        }

    def _call(self, tool: str, arguments: dict[str, Any]) -> tuple[bool, str]:
        result = self._portal.call(self._session.call_tool, tool, arguments)
        assert result.structured_content is None
        (content,) = result.content
        assert isinstance(content, TextContent)
        return bool(result.is_error), content.text

    def call(self, tool: str, **arguments: Any) -> str:
        """The answer of a tool."""
        failed, text = self._call(tool, arguments)
        assert not failed, text
        return text

    def fails(self, tool: str, **arguments: Any) -> str:
        """What a tool says when it fails."""
        failed, text = self._call(tool, arguments)
        assert failed, text
        return text


@contextlib.contextmanager
def agent(
    cowfs: Cowfs, cwd: Path, *options: str, env: dict[str, str] | None = None
) -> Iterator[Agent]:
    """A server that was started in `cwd`, with options and further variables."""
    command, *arguments = cowfs.argv(*options)
    server = StdioServerParameters(
        command=command, args=arguments, env={**cowfs.env, **(env or {})}, cwd=cwd
    )

    @contextlib.asynccontextmanager
    async def connected() -> AsyncIterator[tuple[ClientSession, InitializeResult]]:
        async with (
            stdio_client(server) as (reading, writing),
            ClientSession(reading, writing) as session,
        ):
            yield session, await session.initialize()

    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(connected()) as (session, said),
    ):
        yield Agent(portal, session, said)
