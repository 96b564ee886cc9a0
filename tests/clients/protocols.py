"""What agents say to the server of a model and hear from it, in four protocols.

The names of fields are those of the public references of the Anthropic Messages API, OpenAI's
Responses and Chat Completions APIs, and the Gemini API (generateContent), as far as the agents
look at them.

Threading: pure functions.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from typing import Protocol as TypingProtocol

Document = dict[str, Any]


class Said(NamedTuple):
    """A piece of a conversation. who: `user`, `model`, `call` (of a tool), `result` (of one) or
    `system`. text: what was said; of a call and of a result the name of the tool."""

    who: str
    text: str


@dataclass(frozen=True, slots=True)
class Call:
    """The model calls a tool of the agent. namespace: of the tool (OpenAI Responses), "" if it has
    none."""

    tool: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    namespace: str = ""


Block = str | Call


class Protocol(TypingProtocol):
    """One of them. body: of a request. ids: gives names that nothing has yet."""

    def is_streamed(self, path: str, body: Mapping[str, Any]) -> bool: ...
    def said(self, body: Mapping[str, Any]) -> Iterator[Said]: ...
    def answer(
        self, body: Mapping[str, Any], blocks: Sequence[Block], ids: Iterator[str]
    ) -> Document: ...
    def events(self, answer: Document) -> Iterator[Document]: ...


def protocol_of(path: str) -> Protocol | None:
    """The one of a request's path; None if that asks no model."""
    if path.endswith("/messages"):
        return Messages()
    if path.endswith("/responses"):
        return Responses()
    if path.endswith("/chat/completions"):
        return Completions()
    if path.endswith((":generateContent", ":streamGenerateContent")):
        return Gemini()
    return None


def _blocks(content: Any) -> list[Document]:
    """The content of a message: text, or a list of blocks."""
    return [{"type": "text", "text": content}] if isinstance(content, str) else content or []


def _texts(content: Any) -> Iterator[str]:
    for block in _blocks(content):
        if "text" in block:
            yield block["text"]


class Messages:
    """POST /v1/messages"""

    def is_streamed(self, path: str, body: Mapping[str, Any]) -> bool:
        return bool(body.get("stream"))

    def said(self, body: Mapping[str, Any]) -> Iterator[Said]:
        names: dict[object, str] = {}
        for message in body["messages"]:
            # There are messages of the system in the middle, too.
            who = {"user": "user", "assistant": "model"}.get(message["role"], "system")
            for block in _blocks(message["content"]):
                if block["type"] == "text":
                    yield Said(who, block["text"])
                elif block["type"] == "tool_use":
                    names[block["id"]] = block["name"]
                    yield Said("call", block["name"])
                elif block["type"] == "tool_result":
                    yield Said("result", names.get(block["tool_use_id"], "?"))

    def answer(
        self, body: Mapping[str, Any], blocks: Sequence[Block], ids: Iterator[str]
    ) -> Document:
        content: list[Document] = []
        for block in blocks:
            if isinstance(block, str):
                content.append({"type": "text", "text": block})
            else:
                use = {"id": f"toolu_{next(ids)}", "name": block.tool, "input": block.arguments}
                content.append({"type": "tool_use", **use})
        return {
            "id": f"msg_{next(ids)}",
            "type": "message",
            "role": "assistant",
            "model": body.get("model", "stub"),
            "content": content,
            "stop_reason": "tool_use" if _has_calls(blocks) else "end_turn",
            "stop_sequence": None,
            "usage": {"input_tokens": 10, "output_tokens": 5},
        }

    def events(self, answer: Document) -> Iterator[Document]:
        yield {"type": "message_start", "message": {**answer, "content": [], "stop_reason": None}}
        for index, block in enumerate(answer["content"]):
            if block["type"] == "text":
                empty: Document = {"text": ""}
                delta = {"type": "text_delta", "text": block["text"]}
            else:
                empty = {"input": {}}
                text = json.dumps(block["input"])
                delta = {"type": "input_json_delta", "partial_json": text}
            at = {"index": index}
            yield {"type": "content_block_start", **at, "content_block": {**block, **empty}}
            yield {"type": "content_block_delta", **at, "delta": delta}
            yield {"type": "content_block_stop", **at}
        end = {"stop_reason": answer["stop_reason"], "stop_sequence": None}
        yield {"type": "message_delta", "delta": end, "usage": answer["usage"]}
        yield {"type": "message_stop"}


class Responses:
    """POST /v1/responses"""

    def is_streamed(self, path: str, body: Mapping[str, Any]) -> bool:
        return bool(body.get("stream"))

    def said(self, body: Mapping[str, Any]) -> Iterator[Said]:
        names: dict[object, str] = {}
        items = body["input"]
        for item in [{"role": "user", "content": items}] if isinstance(items, str) else items:
            kind = item.get("type", "message")
            if kind == "message":
                who = {"user": "user", "assistant": "model"}.get(item["role"], "system")
                for text in _texts(item["content"]):
                    yield Said(who, text)
            elif kind.endswith("_call"):
                names[item.get("call_id")] = item.get("name", kind)
                yield Said("call", item.get("name", kind))
            elif kind.endswith("_output"):
                yield Said("result", names.get(item.get("call_id"), "?"))

    def answer(
        self, body: Mapping[str, Any], blocks: Sequence[Block], ids: Iterator[str]
    ) -> Document:
        output: list[Document] = []
        for block in blocks:
            if isinstance(block, str):
                text = {"type": "output_text", "text": block, "annotations": []}
                item: Document = {"type": "message", "id": f"msg_{next(ids)}", "role": "assistant"}
                output.append({**item, "status": "completed", "content": [text]})
            else:
                item = {"type": "function_call", "id": f"fc_{next(ids)}", "status": "completed"}
                space = {"namespace": block.namespace} if block.namespace else {}
                function = {"name": block.tool, "arguments": json.dumps(block.arguments)}
                output.append({**item, **space, **function, "call_id": f"call_{next(ids)}"})
        return {
            "id": f"resp_{next(ids)}",
            "object": "response",
            "status": "completed",
            "model": body.get("model", "stub"),
            "output": output,
            "usage": {"input_tokens": 10, "output_tokens": 5, "total_tokens": 15},
        }

    def events(self, answer: Document) -> Iterator[Document]:
        begun = {**answer, "output": [], "usage": None, "status": "in_progress"}
        yield {"type": "response.created", "response": begun}
        for index, item in enumerate(answer["output"]):
            place = {"output_index": index, "item": item}
            yield {"type": "response.output_item.added", **place}
            yield {"type": "response.output_item.done", **place}
        yield {"type": "response.completed", "response": answer}


class Completions:
    """POST /v1/chat/completions"""

    def is_streamed(self, path: str, body: Mapping[str, Any]) -> bool:
        return bool(body.get("stream"))

    def said(self, body: Mapping[str, Any]) -> Iterator[Said]:
        names: dict[object, str] = {}
        for message in body["messages"]:
            if message["role"] == "tool":
                yield Said("result", names.get(message.get("tool_call_id"), "?"))
                continue
            who = {"user": "user", "assistant": "model"}.get(message["role"], "system")
            for text in _texts(message.get("content")):
                if text:
                    yield Said(who, text)
            for made in message.get("tool_calls") or ():
                names[made["id"]] = made["function"]["name"]
                yield Said("call", made["function"]["name"])

    def answer(
        self, body: Mapping[str, Any], blocks: Sequence[Block], ids: Iterator[str]
    ) -> Document:
        text = "".join(block for block in blocks if isinstance(block, str))
        message: Document = {"role": "assistant", "content": text}
        if _has_calls(blocks):
            message["tool_calls"] = [
                {
                    "id": f"call_{next(ids)}",
                    "type": "function",
                    "function": {"name": block.tool, "arguments": json.dumps(block.arguments)},
                }
                for block in _calls(blocks)
            ]
        end = "tool_calls" if _has_calls(blocks) else "stop"
        return {
            "id": f"chatcmpl-{next(ids)}",
            "object": "chat.completion",
            "created": 0,
            "model": body.get("model", "stub"),
            "choices": [{"index": 0, "message": message, "finish_reason": end}],
            "usage": {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15},
        }

    def events(self, answer: Document) -> Iterator[Document]:
        choice = answer["choices"][0]
        delta = dict(choice["message"])
        if "tool_calls" in delta:
            delta["tool_calls"] = [
                {"index": index, **made} for index, made in enumerate(delta["tool_calls"])
            ]
        chunk = {**answer, "object": "chat.completion.chunk"}
        for part, reason in ((delta, None), ({}, choice["finish_reason"])):
            choices = [{"index": 0, "delta": part, "finish_reason": reason}]
            yield {**chunk, "choices": choices, "usage": answer["usage"] if reason else None}


class Gemini:
    """POST /v1beta/models/NAME:generateContent and :streamGenerateContent"""

    def is_streamed(self, path: str, body: Mapping[str, Any]) -> bool:
        return path.endswith(":streamGenerateContent")

    def said(self, body: Mapping[str, Any]) -> Iterator[Said]:
        for content in body["contents"]:
            who = "model" if content.get("role") == "model" else "user"
            for part in content["parts"]:
                if "text" in part:
                    yield Said(who, part["text"])
                elif "functionCall" in part:
                    yield Said("call", part["functionCall"]["name"])
                elif "functionResponse" in part:
                    yield Said("result", part["functionResponse"]["name"])

    def answer(
        self, body: Mapping[str, Any], blocks: Sequence[Block], ids: Iterator[str]
    ) -> Document:
        parts: list[Document] = []
        for block in blocks:
            if isinstance(block, str):
                parts.append({"text": block})
            else:
                made = {"id": next(ids), "name": block.tool, "args": block.arguments}
                parts.append({"functionCall": made})
        content = {"role": "model", "parts": parts}
        usage = {"promptTokenCount": 10, "candidatesTokenCount": 5, "totalTokenCount": 15}
        return {
            "responseId": next(ids),
            "modelVersion": "stub",
            "candidates": [{"index": 0, "content": content, "finishReason": "STOP"}],
            "usageMetadata": usage,
        }

    def events(self, answer: Document) -> Iterator[Document]:
        yield answer


def _calls(blocks: Iterable[Block]) -> list[Call]:
    return [block for block in blocks if isinstance(block, Call)]


def _has_calls(blocks: Iterable[Block]) -> bool:
    return bool(_calls(blocks))
