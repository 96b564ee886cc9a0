"""What the quick commands use instead of `json` and `socket` does the same."""

from __future__ import annotations

import array
import json
import os
import socket
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cowfs.client import lean

values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
)
blanks = st.text(" \t\r\n", max_size=3)


@given(values)
def test_what_is_written_is_what_json_writes(value: Any) -> None:
    assert lean.dumps(value) == json.dumps(value)


@given(values, blanks, blanks)
def test_what_is_read_is_what_json_reads(value: Any, before: str, after: str) -> None:
    text = before + json.dumps(value) + after
    assert lean.loads(text) == value
    assert lean.loads(text.encode()) == value


@given(st.text(alphabet='{}[]",:0123456789.eE+-tfn\\u \x00\xe4', max_size=30))
def test_what_json_refuses_is_refused(text: str) -> None:
    try:
        wanted = json.loads(text)
    except ValueError:
        with pytest.raises(ValueError):  # noqa: PT011 - json words them differently
            lean.loads(text)
    else:
        assert lean.loads(text) == wanted


def test_lone_surrogates_stand_for_bytes() -> None:
    assert lean.dumps(os.fsdecode(b"\xff")) == '"\\udcff"'
    assert os.fsencode(lean.loads('"\\udcff"')) == b"\xff"


def test_only_data_can_be_written() -> None:
    with pytest.raises(TypeError, match="set cannot be written as JSON"):
        lean.dumps({"a": {1}})


def test_descriptors_come_with_their_bytes() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    reading, writing = os.pipe()
    with ours, theirs:
        rights = array.array("i", [reading, writing])
        ours.sendmsg([b"two"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
        data, found = lean.receive(theirs, 100, 4)
        assert data == b"two"
        assert [os.fstat(fd).st_ino for fd in found] == [os.fstat(reading).st_ino] * 2
        assert lean.peer_process(theirs) == os.getpid()
    for fd in (reading, writing, *found):
        os.close(fd)
