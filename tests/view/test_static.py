"""The tree as static HTML: whole, small enough, and never anything but text."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

from rlm_notebook.trace.recorder import Recorder
from rlm_notebook.trace.trace import Trace
from rlm_notebook.view.static import BAD, WAIT, render_html
from tests.view.sample import MS, Clock, everywhere, realistic, sample

EVIL = "<img src=x onerror=alert(1)><script>alert(1)</script> \" ' </pre></details>&lt;"
TAGS = {"div", "span", "details", "summary", "pre", "b"}
CAP = 400_000
"""Bytes of a saved tree."""
KEPT = {
    *("background", "border", "border-left", "border-radius", "color", "cursor", "display"),
    *("float", "font-family", "font-size", "font-weight", "height", "left", "line-height"),
    *("margin", "margin-left", "margin-right", "margin-top", "max-height", "max-width"),
    *("min-width", "opacity", "overflow", "overflow-wrap", "padding", "position", "text-align"),
    *("text-overflow", "top", "vertical-align", "white-space", "width"),
}
"""Properties that the sanitizers of JupyterLab 4.3 and 4.6 keep in notebooks without trust."""


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.styles: set[tuple[str, str]] = set()
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open.append(tag)
        self.tags.add(tag)
        self.attributes.update(name for name, _ in attrs)
        for name, value in attrs:
            if name == "style":
                for each in (value or "").split(";"):
                    key, _, of = each.partition(":")
                    self.styles.add((key, of))

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


def failing(slots: int, message: str = "failed {}") -> Trace:
    """A batch of which every slot failed, each with a message of its own."""
    recorder = Recorder(clock=Clock())
    run = recorder.start("run", None)
    batch = recorder.start("batch", run, function="llm_query_batched", size=slots, limit=4)
    for index in range(slots):
        slot = recorder.start("slot", batch, index=index, prompt="p" * 3_000)
        error = {"type": "http", "message": message.format(index)}
        recorder.end(slot, "error", error=error)
    recorder.end(batch)
    recorder.end(run, "ok", outcome="answered", answer="none")
    return recorder.trace


def test_the_html_shows_the_whole_tree() -> None:
    text = parsed(render_html(realistic())).text
    for part in (
        *("answered", "Which access codes are named", "turn 1", "turn 3", "llm_query_batched"),
        *("slot 0", "slot 19", "child run", "http: rate limited (HTTP 429)", "2 failed"),
        *("31 codes are named.", "KeyError: 'author'", "2 errors", "6.61 s"),
        *("waiting in the queue", "160 ms, approximate latency: batch duration / number"),
    ):
        assert part in text


def test_a_slot_shows_its_wait_and_its_latency() -> None:
    # Slot 14 of the sample waited 595 ms for one of the four places and took 2.6 s.
    html = render_html(realistic())
    assert re.search(r"slot 14<.*?>595 ms<.*?>2\.60 s<", html)


def test_a_state_has_its_word_unless_it_is_ok() -> None:
    text = parsed(render_html(realistic(cancelled=True))).text
    for part in ("⊘ cancelled slot 3", "✕ error slot 6", "✓ slot 5", "stopped (interrupt)"):
        assert part in text
    assert "✓ ok" not in text


def test_bars_are_drawn_to_scale() -> None:
    html = render_html(sample(slots=2))
    bar = r"left:([\d.]+)%;top:0;height:10px;width:([\d.]+)%;min-width:2px;background:"
    # Slot 1 waited for slot 0 (300 ms) and took 30 ms: 90.91 % and 9.09 % of the batch.
    assert re.findall(bar + re.escape(WAIT), html) == [("0.00", "90.91")]
    assert ("90.91", "9.09") in re.findall(bar + re.escape(BAD), html)


def test_the_approximate_latency_is_marked_on_every_slot() -> None:
    marks = re.findall(r"left:([\d.]+)%;top:-2px", render_html(realistic()))
    assert len(marks) == 21
    # 3.195 s / 20 prompts = 160 ms after the start of slot 0: 5 % of the batch.
    assert marks[0] == "5.00"


@pytest.mark.parametrize("trace", [everywhere(EVIL), sample(text=EVIL)])
def test_model_text_in_any_attribute_stays_text(trace: Trace) -> None:
    found = parsed(render_html(trace))
    assert found.tags <= TAGS
    assert found.attributes <= {"style", "open"}
    assert EVIL in found.text


@pytest.mark.parametrize("trace", [realistic(), realistic(slots=2_000), failing(200)])
def test_styles_are_those_that_notebooks_keep_without_trust(trace: Trace) -> None:
    styles = parsed(render_html(trace)).styles
    assert {name for name, _ in styles} <= KEPT
    values = {value for _, value in styles}
    assert not values & {"anywhere", "currentColor", "inherit"}
    assert not any("var(" in value for value in values)


@pytest.mark.parametrize("slots", [200, 2_000])
def test_a_large_batch_stays_small(slots: int) -> None:
    html = render_html(sample(slots=slots, text="x" * 3_000))
    assert len(html.encode()) < CAP
    text = parsed(html).text
    assert f"slot {slots // 2}" in text
    assert "more are left out here" in text
    assert f"slot {slots - 1}" in text


def test_a_batch_of_sixty_is_shown_whole() -> None:
    text = parsed(render_html(realistic(slots=60))).text
    assert all(f"slot {index}" in text for index in range(60))
    assert "left out" not in text


def test_two_thousand_failed_slots_are_all_named_with_their_errors() -> None:
    html = render_html(failing(2_000))
    assert len(html.encode()) < CAP
    text = parsed(html).text
    found = {int(number) for number in re.findall(r"http: failed (\d+)", text)}
    assert found >= set(range(2_000))
    assert "1,895 of those left out failed" in text


def test_what_does_not_fit_is_counted() -> None:
    html = render_html(failing(20_000, "a rather long message about what has failed: {}"))
    assert len(html.encode()) < CAP
    text = parsed(html).text
    assert re.search(r"\[… [\d,]+ more failed\]", text)
    assert "leaves parts out" in text


def test_many_turns_stay_below_the_cap_and_say_so() -> None:
    recorder = Recorder(clock=Clock())
    run = recorder.start("run", None)
    for index in range(59):
        turn = recorder.start("turn", run, index=index)
        for number in range(20):
            text = f"{number} é" * 800
            recorder.end(recorder.start("lm_call", turn, prompt=text), "ok", response=text)
    recorder.end(run)
    html = render_html(recorder.trace)
    assert len(html.encode()) < CAP
    assert "leaves parts out" in parsed(html).text


def test_a_text_of_five_megabytes_is_cut_with_a_mark() -> None:
    html = render_html(sample(text="y" * 5_000_000))
    assert len(html.encode()) < CAP
    text = parsed(html).text
    assert "[… 4,996,000 more characters]" in text
    assert "[… 4,998,000 more characters]" in text  # the answer


@pytest.mark.parametrize("text", ["\ud800 lone", "\x1b[31mred\x00\x07", "😀" * 100, ""])
def test_odd_characters_can_be_shown(text: str) -> None:
    for trace in (sample(text=text), everywhere(text)):
        parsed(render_html(trace).encode().decode())


def test_a_very_deep_tree_can_be_shown() -> None:
    recorder = Recorder(clock=Clock())
    span = None
    for _ in range(2_000):
        span = recorder.start("run", span)
    assert "leaves parts out" in parsed(render_html(recorder.trace)).text


def test_a_run_that_goes_on_shows_how_long_it_has_taken_so_far() -> None:
    text = parsed(render_html(sample(running=True))).text
    assert "▸ running" in text
    assert "≥ 1.45 s" in text


def test_a_slot_that_still_waits_has_a_wait_and_no_latency() -> None:
    clock = Clock()
    recorder = Recorder(clock=clock)
    batch = recorder.start("batch", recorder.start("run", None), size=1, limit=1)
    recorder.start("slot", batch, state="waiting", index=0, prompt="later")
    clock.ns = 250 * MS
    recorder.update(batch, model="m")
    assert "◌ waiting slot 0≥ 250 mslater" in parsed(render_html(recorder.trace)).text


def test_an_empty_trace_says_that_nothing_has_begun() -> None:
    assert parsed(render_html(Recorder().trace)).text == "the run has not begun"
