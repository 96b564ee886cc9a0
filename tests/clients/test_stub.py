"""The stub answers what its script says, in each protocol."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.client import HTTPConnection
from typing import Any

import pytest

from tests.clients.protocols import Said
from tests.clients.stub import Fail, Script, Stub, call

RUNS = [call("Run", command="a"), call("Run", command="b")]
SCRIPT: Script = {
    "first thing": [["I do it.", *RUNS], "It is done."],
    "second thing": ["Done, too."],
    "third thing": [Fail(529), "never said"],
}


@pytest.fixture
def stub() -> Iterator[Stub]:
    with Stub(SCRIPT) as stub:
        yield stub


def post(stub: Stub, path: str, body: dict[str, Any], status: int = 200) -> str:
    host = stub.url.removeprefix("http://")
    connection = HTTPConnection(host, timeout=20)
    try:
        connection.request("POST", path, json.dumps(body))
        answer = connection.getresponse()
        assert answer.status == status
        return answer.read().decode()
    finally:
        connection.close()


def events(text: str) -> list[Any]:
    """The documents of a stream of server-sent events."""
    lines = [line for line in text.splitlines() if line.startswith("data: ")]
    return [json.loads(line.removeprefix("data: ")) for line in lines]


TOOLS = {"tools": [{"name": "Run"}]}

# -- choosing -----------------------------------------------------------------------------------


def message(role: str, *content: str | dict[str, Any]) -> dict[str, Any]:
    blocks = [{"type": "text", "text": c} if isinstance(c, str) else c for c in content]
    return {"role": role, "content": blocks}


def use(name: str) -> dict[str, Any]:
    return {"type": "tool_use", "id": name, "name": "Run", "input": {}}


def result(name: str) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": name, "content": "out"}


def ask(stub: Stub, *messages: dict[str, Any], **more: Any) -> list[Any]:
    """What the model says, in Anthropic's Messages."""
    body = {"model": "m", "messages": list(messages), **TOOLS, **more}
    content: list[Any] = json.loads(post(stub, "/v1/messages?beta=true", body))["content"]
    return content


def test_answers_follow_the_conversation(stub: Stub) -> None:
    prompt = message("user", "please do the first thing", "and mind this notice")
    says, *calls = ask(stub, prompt)
    assert says == {"type": "text", "text": "I do it."}
    assert [made["input"] for made in calls] == [{"command": "a"}, {"command": "b"}]
    assert all(made["type"] == "tool_use" and made["name"] == "Run" for made in calls)
    assert calls[0]["id"] != calls[1]["id"]

    done = [prompt, message("assistant", says["text"], use("x"), use("y"))]
    # A notice of the system between is no answer, and parts of one answer are one.
    notice = message("system", "a notice")
    turn = [*done, notice, message("user", result("x"), result("y"))]
    assert ask(stub, *turn) == [{"type": "text", "text": "It is done."}]
    turn.append(message("assistant", "It is done."))
    assert ask(stub, *turn) == [{"type": "text", "text": "ok"}]  # past the end
    assert ask(stub, *turn, message("user", "the second thing")) == [
        {"type": "text", "text": "Done, too."}
    ]
    request = stub.last("second thing")
    assert stub.history(request) == [
        ("user", "first thing"),
        ("model", "I do it."),
        ("call", "Run"),
        ("call", "Run"),
        ("result", "Run"),
        ("result", "Run"),
        ("model", "It is done."),
        ("user", "second thing"),
    ]
    assert Said("user", "and mind this notice") in request.said
    assert "a notice" in request
    assert "no such thing" not in request
    assert len(stub.requests_of("first thing")) == 3


def test_what_is_not_in_the_script(stub: Stub) -> None:
    assert ask(stub, message("user", "another thing"))[0]["text"] == "ok"
    assert ask(stub, message("user", "the first thing"), tools=[])[0]["text"] == "ok"
    counted = post(stub, "/v1/messages/count_tokens", {"messages": []})
    assert json.loads(counted)["input_tokens"] > 0
    post(stub, "/v1/other", {}, status=404)


def test_an_error(stub: Stub) -> None:
    body = {"messages": [message("user", "the third thing")], **TOOLS}
    answer = json.loads(post(stub, "/v1/messages", body, status=529))
    assert answer["type"] == "error"
    assert answer["error"]["type"] == "api_error"


# -- protocols: what a stream says is what a plain answer says ------------------------------------


def test_messages(stub: Stub) -> None:
    body = {"messages": [message("user", "the first thing")], **TOOLS}
    plain = json.loads(post(stub, "/v1/messages", body))
    assert plain["stop_reason"] == "tool_use"
    stream = events(post(stub, "/v1/messages", {**body, "stream": True}))
    assert [event["type"] for event in stream[:2]] == ["message_start", "content_block_start"]
    assert stream[-1]["type"] == "message_stop"
    assert stream[-2]["delta"]["stop_reason"] == "tool_use"
    deltas = [event["delta"] for event in stream if event["type"] == "content_block_delta"]
    assert deltas[0]["text"] == "I do it."
    assert [json.loads(delta["partial_json"]) for delta in deltas[1:]] == [
        block["input"] for block in plain["content"][1:]
    ]


def test_responses(stub: Stub) -> None:
    asked = {"type": "input_text", "text": "the first thing"}
    said = {"type": "message", "role": "user", "content": [asked]}
    body = {"model": "m", "input": [said], **TOOLS}
    plain = json.loads(post(stub, "/v1/responses", body))
    kinds = [item["type"] for item in plain["output"]]
    assert kinds == ["message", "function_call", "function_call"]
    assert json.loads(plain["output"][1]["arguments"]) == {"command": "a"}
    stream = events(post(stub, "/v1/responses", {**body, "stream": True}))
    assert stream[0]["type"] == "response.created"
    assert stream[-1]["type"] == "response.completed"
    done = [event["item"] for event in stream if event["type"] == "response.output_item.done"]
    assert [item["type"] for item in done] == kinds
    assert done == stream[-1]["response"]["output"]

    calls = [item for item in done if item["type"] == "function_call"]
    outputs = [
        {"type": "function_call_output", "call_id": made["call_id"], "output": "out"}
        for made in calls
    ]
    later = json.loads(post(stub, "/v1/responses", {**body, "input": [said, *done, *outputs]}))
    assert later["output"][0]["content"][0]["text"] == "It is done."
    assert stub.history(stub.requests[-1]) == [
        ("user", "first thing"),
        ("model", "I do it."),
        *[("call", "Run")] * 2,
        *[("result", "Run")] * 2,
    ]


def test_completions(stub: Stub) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "the first thing"}], **TOOLS}
    plain = json.loads(post(stub, "/v1/chat/completions", body))["choices"][0]
    assert plain["finish_reason"] == "tool_calls"
    assert plain["message"]["content"] == "I do it."
    stream = events(post(stub, "/v1/chat/completions", {**body, "stream": True}))
    delta = stream[0]["choices"][0]["delta"]
    assert delta["content"] == "I do it."
    assert [made["index"] for made in delta["tool_calls"]] == [0, 1]
    assert stream[-1]["choices"][0]["finish_reason"] == "tool_calls"

    results = [
        {"role": "tool", "tool_call_id": made["id"], "content": "out"}
        for made in plain["message"]["tool_calls"]
    ]
    messages = [*body["messages"], plain["message"], *results]
    later = json.loads(post(stub, "/v1/chat/completions", {**body, "messages": messages}))
    assert later["choices"][0]["message"]["content"] == "It is done."
    assert later["choices"][0]["finish_reason"] == "stop"
    assert stub.history(stub.requests[-1])[2:] == [*[("call", "Run")] * 2, *[("result", "Run")] * 2]


def test_gemini(stub: Stub) -> None:
    asked = {"role": "user", "parts": [{"text": "the first thing"}]}
    body = {"contents": [asked], **TOOLS}
    plain = json.loads(post(stub, "/v1beta/models/m:generateContent", body))
    content = plain["candidates"][0]["content"]
    assert content["parts"][0] == {"text": "I do it."}
    assert content["parts"][1]["functionCall"]["args"] == {"command": "a"}
    path = "/v1beta/models/m:streamGenerateContent?alt=sse"
    (streamed,) = events(post(stub, path, body))
    assert streamed["candidates"][0]["finishReason"] == "STOP"

    answers = [{"functionResponse": {"name": "Run", "response": {}}}] * 2
    contents = [asked, content, {"role": "user", "parts": answers}]
    body["contents"] = contents
    later = json.loads(post(stub, "/v1beta/models/m:generateContent", body))
    assert later["candidates"][0]["content"]["parts"] == [{"text": "It is done."}]
    assert stub.history(stub.requests[-1])[2:] == [*[("call", "Run")] * 2, *[("result", "Run")] * 2]
