"""The pictures: what is drawn, and where."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from benchmarks.svg import LEFT, RIGHT, WIDTH, Chart, Mark, Row, Scale, render

SVG = "{http://www.w3.org/2000/svg}"


def chart(**changes: object) -> Chart:
    rows = [
        Row("first <row>", {"one": Mark(2.0, 1.0, 4.0), "two": Mark(8.0, 8.0, 8.0)}),
        Row("second", {"one": Mark(1.0, 1.0, 1.0)}),
    ]
    return Chart("A & B", "times", ["one", "two"], rows, line=1.0)


def texts(root: ElementTree.Element) -> list[str]:
    return [element.text or "" for element in root.iter(f"{SVG}text")]


def test_it_is_a_picture_with_all_names() -> None:
    root = ElementTree.fromstring(render(chart()))
    assert root.tag == f"{SVG}svg"
    assert {"A & B", "one", "two", "first <row>", "second", "times"} <= set(texts(root))
    title = root.find(f"{SVG}title")
    assert title is not None
    assert title.text == "A & B"


def test_every_measurement_has_a_mark_and_a_line() -> None:
    root = ElementTree.fromstring(render(chart()))
    spreads = [e for e in root.iter(f"{SVG}line") if e.get("class", "").endswith(" w")]
    assert len(spreads) == 3
    # One in the legend for each series, one for each measurement.
    circles = list(root.iter(f"{SVG}circle"))
    squares = [e for e in root.iter(f"{SVG}rect") if e.get("class", "").endswith(" f")]
    assert (len(circles), len(squares)) == (1 + 2, 1 + 1)


def test_both_schemes_have_every_colour() -> None:
    text = render(chart())
    light, _, dark = text.partition("@media(prefers-color-scheme:dark)")
    for name in (".bg{", "text{", ".grid{", ".s0{", ".s6{"):
        assert name in light
        assert name in dark


def test_the_scale_is_logarithmic() -> None:
    scale = Scale.around([1.0, 3.0, 4.0])
    assert scale.ticks() == [1.0, 2.0, 4.0]
    assert scale.place(1.0) == LEFT
    assert scale.place(4.0) == WIDTH - RIGHT
    assert scale.place(2.0) == pytest.approx((LEFT + WIDTH - RIGHT) / 2)


def test_a_wide_scale_goes_by_tens() -> None:
    assert Scale.around([0.5, 900.0]).ticks() == pytest.approx([0.1, 1, 10, 100, 1000])


def test_a_scale_of_one_value_or_of_none() -> None:
    assert len(Scale.around([1.0]).ticks()) == 2
    assert len(Scale.around([]).ticks()) == 2
    assert render(Chart("empty", "u", [], []))
