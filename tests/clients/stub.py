"""A stand-in for the server of a model, which answers from a script.

It speaks what the agents speak: Anthropic Messages, OpenAI Responses and Chat Completions, and
Gemini's generateContent, each plain and streamed (protocols.py).

    Stub({"make two": [["I make two.", call("Bash", command="echo 1 > one")], "Made."],
          "break": [Fail(529)]})

A script has, for words of the user, the answers that follow them one after the other: text, calls
of tools, or an error. The server keeps nothing of a conversation. For each request it looks for
the last thing that the user said with words of the script in it, counts the answers after it, and
gives the next one. So it is right for a conversation that was resumed, copied or cut off, and for
sub-agents that run at once. Words of one rule must not occur in another, nor in what agents add
to prompts by themselves. What is not in the script is answered "ok".

Threading: one thread for each request; a script is not changed, `requests` only grows.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.clients.protocols import Block, Call, Protocol, Said, protocol_of


@dataclass(frozen=True, slots=True)
class Fail:
    """An answer that is an error of the server; status: of HTTP."""

    status: int


Plain = str | Call | Fail | Sequence[Block]
Answer = Plain | Callable[[], Plain]
"""A function is called when the agent asks."""
Script = Mapping[str, Sequence[Answer]]
_OK = "ok"
_NOT_HERE = {"error": {"message": "not here"}}


def call(tool: str, /, *, namespace: str = "", **arguments: object) -> Call:
    """A call of a tool by its name at the agent."""
    return Call(tool, arguments, namespace)


@dataclass(frozen=True, slots=True)
class Request:
    """What an agent has sent. rule: the words of the script that it was answered by, "" if none.
    said: the conversation in it, as the agent sent it, without what it says to the model itself."""

    path: str
    body: Mapping[str, Any]
    rule: str
    said: tuple[Said, ...]

    def __contains__(self, text: str) -> bool:
        """Whether a text is anywhere in it."""
        return json.dumps(text)[1:-1] in json.dumps(self.body)


class Stub:
    """The server, while it is entered. requests: those that were answered by a model, in order.
    listener: a socket to use instead of a new one on 127.0.0.1."""

    def __init__(self, script: Script, listener: socket.socket | None = None) -> None:
        self.script = dict(script)
        self.requests: list[Request] = []
        # They must not be those of another server: agents know the results of tools by them.
        # (A generator could not be used by two threads.)
        form = f"{time.time_ns():x}{{:04d}}"
        self.ids: Iterator[str] = map(form.format, itertools.count())
        self._server = _Server(self, listener)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Stub:
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def requests_of(self, rule: str) -> list[Request]:
        """Those that were answered by a rule."""
        return [request for request in self.requests if request.rule == rule]

    def last(self, rule: str) -> Request:
        """The last one that was answered by a rule."""
        return self.requests_of(rule)[-1]

    def history(self, request: Request) -> list[Said]:
        """The conversation in a request, as far as the script knows it: what the user said is
        the words of a rule in it; anything else that an agent says in the user's name is left
        out."""
        found = []
        for said in request.said:
            if said.who == "user":
                found += [Said("user", rule) for rule in self.script if rule in said.text]
            elif said.who != "system":
                found.append(said)
        return found

    def answer(self, path: str, protocol: Protocol, body: Mapping[str, Any]) -> Plain:
        """The next answer to a conversation; keeps the request."""
        said = tuple(protocol.said(body))
        rule, number = self._choose(said) if body.get("tools") else ("", 0)
        self.requests.append(Request(path, body, rule, said))
        answers = self.script.get(rule, ())
        answer = answers[number] if number < len(answers) else _OK
        return answer() if callable(answer) else answer

    def _choose(self, said: Sequence[Said]) -> tuple[str, int]:
        """The rule, and the number of answers that came after its words."""
        for at in range(len(said) - 1, -1, -1):
            if said[at].who == "user":
                for rule in self.script:
                    if rule in said[at].text:
                        return rule, _answers(said[at:])
        return "", 0


def _answers(said: Sequence[Said]) -> int:
    """Neighbouring things of the model are one answer."""
    of_model = (entry.who in ("model", "call") for entry in said)
    return sum(is_model for is_model, _ in itertools.groupby(of_model))


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def do_HEAD(self) -> None:
        self._document({}, body=False)

    def do_GET(self) -> None:
        if self.path.partition("?")[0].endswith("/models"):
            self._document({"object": "list", "data": [], "models": []})
        else:
            self._document(_NOT_HERE, 404)

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path = self.path.partition("?")[0]
        protocol = protocol_of(path)
        if protocol is None:
            counts = path.endswith(("/count_tokens", ":countTokens"))
            found = {"input_tokens": 10, "totalTokens": 10}
            self._document(found if counts else _NOT_HERE, 200 if counts else 404)
            return
        body = json.loads(raw)
        stub = self.server.stub
        answer = stub.answer(path, protocol, body)
        if isinstance(answer, Fail):
            error = {"type": "api_error", "message": "the script says so", "code": answer.status}
            self._document({"type": "error", "error": error}, answer.status)
            return
        blocks: Sequence[Block] = [answer] if isinstance(answer, str | Call) else answer
        document = protocol.answer(body, blocks, stub.ids)
        if protocol.is_streamed(path, body):
            self._events(protocol.events(document))
        else:
            self._document(document)

    def _document(self, document: Mapping[str, Any], status: int = 200, body: bool = True) -> None:
        data = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if body:
            self.wfile.write(data)

    def _events(self, events: Iterator[Mapping[str, Any]]) -> None:
        """As server-sent events; the end of the connection is the end of them."""
        self.close_connection = True
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        for event in events:
            kind = f"event: {event['type']}\n" if "type" in event else ""
            self.wfile.write(f"{kind}data: {json.dumps(event)}\n\n".encode())

    def log_message(self, *_: object) -> None:
        """Nothing."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, stub: Stub, listener: socket.socket | None) -> None:
        super().__init__(("127.0.0.1", 0), _Handler, bind_and_activate=listener is None)
        self.stub = stub
        if listener is not None:
            self.socket.close()
            self.socket = listener.dup()
            self.server_address = self.socket.getsockname()

    def handle_error(self, request: object, client_address: object) -> None:
        """An agent that was interrupted hangs up."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            with contextlib.suppress(OSError):
                super().handle_error(request, client_address)  # type: ignore[arg-type]
