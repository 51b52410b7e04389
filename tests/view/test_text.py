"""The tree as text: within a terminal's width, with every error in its place."""

from __future__ import annotations

import re

import pytest

from rlm_notebook.trace.recorder import Recorder
from rlm_notebook.view.text import render_text
from tests.view.sample import Clock, everywhere, realistic, sample


def test_the_text_shows_the_tree_with_errors_in_place() -> None:
    lines = render_text(realistic()).splitlines()
    assert lines[0].startswith("✓ answered · 6.61 s · 24 LM calls · 2 errors · 100,740 tokens")
    assert any("✕ error slot 6  http: rate limited (HTTP 429)" in line for line in lines)
    assert any("✕ error code  KeyError: 'author'" in line for line in lines)
    assert any("└─ ✓ child run  Part 6" in line for line in lines)
    assert lines[-1].startswith("answer: 31 codes are named.")
    assert max(map(len, lines)) <= 100


def test_a_batch_has_its_size_limit_duration_and_what_is_not_a_latency() -> None:
    lines = render_text(realistic()).splitlines()
    number = next(n for n, line in enumerate(lines) if "llm_query_batched" in line)
    assert re.search(r"20 prompts, 4 at once · 2 failed +3\.20 s$", lines[number])
    assert lines[number + 1].endswith("approximate 160 ms each (not a latency)")


def test_a_large_batch_is_abbreviated_to_the_first_the_failed_and_the_slowest() -> None:
    lines = render_text(realistic(slots=200)).splitlines()
    assert len(lines) < 40
    slots = [int(found) for line in lines for found in re.findall(r"slot (\d+) ", line)]
    assert slots == [0, 1, 2, 3, 6, 13, 194, 0]  # the last one is of the second batch
    assert any("… 180 more ok" in line for line in lines)
    assert any("wait 18.2 s · 2.60 s" in line for line in lines)


def test_a_batch_of_twelve_is_shown_whole() -> None:
    text = render_text(sample(slots=12))
    assert all(f"slot {index} " in text for index in range(12))
    assert "more" not in text


def test_slots_that_are_left_out_are_counted_by_state() -> None:
    text = render_text(realistic(slots=400, cancelled=True))
    assert "⊘ stopped (interrupt)" in text
    assert "… 386 more: 3 cancelled, 9 ok, 374 not sent" in text


def test_a_long_error_is_shown_whole_below_its_row() -> None:
    recorder = Recorder(clock=Clock())
    message = " ".join(f"word{n}" for n in range(30))
    error = {"type": "http", "message": message}
    recorder.end(recorder.start("run", None), "error", error=error)
    lines = render_text(recorder.trace).splitlines()
    shown = " ".join(" ".join(lines).replace("0.0 ms", "").split())
    assert f"✕ error run http: {message}" in shown
    assert max(map(len, lines)) <= 100


def test_many_rows_are_cut_with_a_mark() -> None:
    recorder = Recorder(clock=Clock())
    run = recorder.start("run", None)
    for _ in range(60):
        turn = recorder.start("turn", run)
        for _ in range(20):
            recorder.start("lm_call", turn)
    lines = render_text(recorder.trace).splitlines()
    assert len(lines) < 410
    assert lines[-1] == "[... the tree goes on ...]"


def test_a_very_deep_tree_can_be_shown() -> None:
    recorder = Recorder(clock=Clock())
    span = None
    for _ in range(2_000):
        span = recorder.start("run", span)
    assert "[... deeper levels ...]" in render_text(recorder.trace)


@pytest.mark.parametrize("text", ["\ud800 a", "\x1b[31mred\x00\x07\r\n", "😀" * 100, "", "\u202eb"])
def test_no_control_character_of_any_attribute_reaches_the_terminal(text: str) -> None:
    for trace in (sample(text=text), everywhere(text)):
        shown = render_text(trace)
        shown.encode()
        assert all(line.isprintable() for line in shown.split("\n"))


def test_colour_is_added_only_where_it_is_asked_for() -> None:
    plain, colored = render_text(realistic()), render_text(realistic(), color=True)
    assert "\x1b" not in plain
    assert "\x1b[31m✕ error\x1b[0m slot 6" in colored
    assert re.sub(r"\x1b\[\d+m", "", colored) == plain


def test_tokens_that_are_a_floor_say_so() -> None:
    assert "≥ 11 tokens" in render_text(sample())


def test_a_run_that_goes_on_is_shown() -> None:
    lines = render_text(sample(running=True)).splitlines()
    assert lines[0].startswith("▸ running")
    assert "1 running" in lines[-1]


def test_a_partial_answer_is_named_as_such() -> None:
    recorder = Recorder(clock=Clock())
    recorder.end(recorder.start("run", None), "cancelled", partial={"codes": [1, 2]})
    assert render_text(recorder.trace).splitlines()[-1] == 'partial answer: {"codes": [1, 2]}'


def test_an_empty_trace_says_that_nothing_has_begun() -> None:
    assert render_text(Recorder().trace) == "the run has not begun"
