"""Changing somebody else's JSON: what is not meant stays byte for byte."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cowfs.hooks.editing import Document

HOOK = {"hooks": [{"type": "command", "command": "x"}]}


def added(text: str, *, comments: bool = False) -> str:
    """With an element more in the list hooks.Stop."""
    document = Document(text, comments=comments)
    document.append(("hooks", "Stop"), HOOK)
    return document.text


def test_an_empty_object() -> None:
    assert added("{}\n") == (
        '{\n  "hooks": {\n    "Stop": [\n      {\n        "hooks": [\n          {\n'
        '            "type": "command",\n            "command": "x"\n          }\n        ]\n'
        "      }\n    ]\n  }\n}\n"
    )


def test_what_is_there_stays_as_it_is() -> None:
    text = '{\n    "z": [1,2,   3],\n    "a": {"b": 1.50e1}, "u": "\\u00e4ä"\n}'
    assert added(text).startswith(text[:-2] + ",")
    assert added(text).endswith("\n}")


def test_the_documents_own_indentation() -> None:
    assert '\n\t"hooks": {\n\t\t"Stop": [\n\t\t\t{\n' in added('{\n\t"a": 1\n}\n')
    assert '\n    "hooks": {\n        "Stop": [' in added('{\n    "a": 1\n}\n')


def test_the_documents_own_line_breaks() -> None:
    changed = added('{\r\n  "a": 1\r\n}\r\n')
    assert changed.count("\n") == changed.count("\r\n")


def test_one_line_stays_one_line() -> None:
    assert added('{"a": 1}\n') == '{"a": 1, "hooks": ' + json.dumps({"Stop": [HOOK]}) + "}\n"
    assert added('{"hooks": {}}') == '{"hooks": {"Stop": ' + json.dumps([HOOK]) + "}}"


def test_after_the_last_element() -> None:
    text = '{\n  "hooks": {\n    "Stop": [\n      1\n    ],\n    "Other": []\n  }\n}\n'
    assert added(text).startswith('{\n  "hooks": {\n    "Stop": [\n      1,\n      {\n        "ho')
    assert added(text).endswith('      }\n    ],\n    "Other": []\n  }\n}\n')


COMMENTED = """\
// mine
{
  "a": 1, // one
  /* the hooks */
  "hooks": {
    "Stop": [
      // before
      {"x": 1}, // after
    ],
  },
}
// end
"""


def test_comments_and_trailing_commas() -> None:
    changed = added(COMMENTED, comments=True)
    for comment in ("// mine", "// one", "/* the hooks */", "// before", "// after", "// end"):
        assert comment in changed
    document = Document(changed, comments=True)
    assert document.value == {"a": 1, "hooks": {"Stop": [{"x": 1}, HOOK]}}
    document.remove(("hooks", "Stop"), 1)
    assert document.text == COMMENTED
    document.remove(("hooks", "Stop"), 0)
    assert "// before" in document.text


def test_comments_are_no_json_where_the_format_has_none() -> None:
    with pytest.raises(ValueError, match="line 1"):
        Document(COMMENTED)


@pytest.mark.parametrize(
    "text",
    [
        "",
        " \n",
        "[]",
        "7",
        '"{}"',
        "{",
        '{"a"}',
        '{"a": }',
        '{"a": 1,}',
        '{"a": 1 "b": 2}',
        '{"a": 1}{}',
        "{'a': 1}",
        '{"a": 01}',
        '{"a": NaN}',
        '{"a": "\n"}',
        '{"a": tru}',
        '{"a": [1 2]}',
        '{"a": 1, "a": 2}',
        "\ufeff{}",
        '{"a": ' + "[" * 100_000 + "]" * 100_000 + "}",
    ],
)
def test_what_is_no_json_object_is_refused(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - the messages differ
        Document(text)


def test_something_else_in_the_way() -> None:
    for text in ('{"hooks": 1}', '{"hooks": {"Stop": {}}}', '{"hooks": []}'):
        with pytest.raises(ValueError, match="there"):
            added(text)


names = st.text(max_size=5)
numbers = st.floats(allow_nan=False, allow_infinity=False)
values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | numbers | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=6,
)
documents = st.dictionaries(names, values, max_size=4)
places = st.integers(0, 3)
gone = object()
GONE = st.just(gone)
styles = st.sampled_from([None, 0, 1, 2, 4, "\t"])


@given(documents, styles, values)
def test_put_in_and_taken_out(value: dict[str, Any], indent: Any, new: Any) -> None:
    text = json.dumps(value, indent=indent)
    document = Document(text)
    if "hooks" not in value:
        document.set(("hooks", "Stop"), [])
        document.append(("hooks", "Stop"), new)
        assert json.loads(document.text) == document.value == {**value, "hooks": {"Stop": [new]}}
        document.remove(("hooks",))
        if value:
            assert document.text == text
    assert json.loads(document.text) == value
    for key in list(value):
        document.remove((key,))
        del value[key]
        assert json.loads(document.text) == document.value == value


@given(st.lists(values, max_size=3), styles, values, st.lists(st.tuples(places, values | GONE)))
def test_elements_of_lists(
    before: list[Any], indent: Any, new: Any, steps: list[tuple[int, Any]]
) -> None:
    document = Document(json.dumps({"list": before}, indent=indent))
    document.append(("list",), new)
    left = [*before, new]
    assert json.loads(document.text)["list"] == left
    for number, value in steps:
        if number >= len(left):
            continue
        if value is gone:
            document.remove(("list",), number)
            del left[number]
        else:
            document.replace(("list",), number, value)
            left[number] = value
        assert json.loads(document.text)["list"] == left
