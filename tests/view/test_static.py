"""The tree as static HTML and as text: whole, small enough, and never anything but text."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

from rlm_notebook.trace.recorder import Recorder
from rlm_notebook.view.static import render_html
from rlm_notebook.view.text import render_text
from tests.view.sample import sample

EVIL = "<img src=x onerror=alert(1)><script>alert(1)</script> \" ' </pre></details>&lt;"
TAGS = {"div", "span", "details", "summary", "pre"}


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open.append(tag)
        self.tags.add(tag)
        self.attributes.update(name for name, _ in attrs)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def parsed(html: str) -> Tags:
    tags = Tags()
    tags.feed(html)
    tags.close()
    assert tags.open == []
    return tags


def test_the_html_shows_the_whole_tree() -> None:
    text = parsed(render_html(sample())).text
    for part in (
        *("answered", "question an answer", "turn 1", "turn 2", "llm_query_batched"),
        *("slot 0", "slot 19", "child run", "http: failed an answer (HTTP 500)", "1 failed"),
        *("wait 300 ms · 30 ms", "it is no slot's latency"),
    ):
        assert part in text


def test_model_text_in_any_field_stays_text() -> None:
    found = parsed(render_html(sample(text=EVIL)))
    assert found.tags <= TAGS
    assert found.attributes <= {"style", "open"}
    assert EVIL in found.text


def test_bars_are_drawn_to_scale() -> None:
    html = render_html(sample(slots=2))
    bars = re.findall(r"width:([\d.]+)%;background-color:([^\"]+)", html)
    # Slot 1 waited for slot 0 (300 ms) and took 30 ms: 90.91 % and 9.09 % of the batch.
    assert ("90.91", "rgba(59,130,196,0.3)") in bars


@pytest.mark.parametrize("slots", [200, 2_000])
def test_a_large_batch_stays_small_and_shows_every_error(slots: int) -> None:
    html = render_html(sample(slots=slots, text="x" * 3_000))
    assert len(html) < 600_000
    text = parsed(html).text
    assert f"slot {slots // 2}" in text
    assert "rows are left out here" in text
    assert f"slot {slots - 1}" in text


def test_a_text_of_five_megabytes_is_cut_with_a_mark() -> None:
    html = render_html(sample(text="y" * 5_000_000))
    assert len(html) < 600_000
    assert "more characters]" in html


@pytest.mark.parametrize("text", ["\ud800 lone", "\x1b[31mred\x00\x07", "😀" * 100, ""])
def test_odd_characters_can_be_shown(text: str) -> None:
    trace = sample(text=text)
    render_html(trace).encode()
    plain = render_text(trace)
    plain.encode()
    assert "\x1b" not in plain
    assert "\x00" not in plain


def test_the_text_shows_the_tree_with_errors_in_place() -> None:
    text = render_text(sample())
    lines = text.splitlines()
    assert lines[0].startswith("✓ answered · ")
    assert "1 error" in lines[0]
    assert any("✕ error slot 10  http: failed an answer (HTTP 500)" in line for line in lines)
    assert any("└─ ✓ slot 19" in line for line in lines)
    assert lines[-1] == "answer: an answer"
    assert max(map(len, lines)) <= 110


def test_the_text_of_a_large_batch_is_cut_but_keeps_its_errors() -> None:
    lines = render_text(sample(slots=2_000)).splitlines()
    assert len(lines) < 60
    assert any("slot 1000" in line and "failed" in line for line in lines)
    assert any("more ..." in line for line in lines)


def test_colour_is_added_only_where_it_is_asked_for() -> None:
    assert "\x1b[31m" in render_text(sample(), color=True)
    assert "\x1b" not in render_text(sample())


def test_a_run_that_goes_on_and_an_empty_trace_are_shown() -> None:
    running = render_text(sample(running=True))
    assert "▸ running" in running
    parsed(render_html(sample(running=True)))
    empty = Recorder().trace
    assert render_text(empty) == "the run has not begun"
    assert "the run has not begun" in render_html(empty)
