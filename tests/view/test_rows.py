"""What a row shows of a span, and what is in its fields when it is opened."""

from __future__ import annotations

import json

import pytest

from rlm_notebook.trace.recorder import Recorder
from rlm_notebook.trace.tree import Span
from rlm_notebook.view.rows import DETAIL, ERROR, Row, fields, label, one_line, row, summary
from rlm_notebook.view.rows import pieces as pieces_of
from tests.view.sample import MS, Clock, everywhere, realistic, sample


def spans(*starts: tuple[str, dict[str, object]]) -> list[Span]:
    """Spans below a run, one for each kind with its attributes."""
    recorder = Recorder(clock=Clock())
    run = recorder.start("run", None)
    ids = [recorder.start(kind, run, **attrs) for kind, attrs in starts]
    return [recorder.trace.tree.spans[each] for each in ids]


def row_of(kind: str, **attrs: object) -> Row:
    return row(spans((kind, attrs))[0])


def test_labels_are_the_words_of_the_field() -> None:
    found = spans(
        ("run", {}),
        ("turn", {"index": 2}),
        ("turn", {"index": 3, "final": True}),
        ("lm_call", {}),
        ("lm_call", {"function": "llm_query"}),
        ("code", {"index": 0}),
        ("code", {"index": 1}),
        ("batch", {"function": "rlm_query_batched"}),
        ("slot", {"index": 0}),
    )
    assert [label(span) for span in found] == [
        *("child run", "turn 3", "final answer", "LM call", "llm_query", "code", "code 2"),
        *("rlm_query_batched", "slot 0"),
    ]
    assert found[0].parent is not None
    assert label(found[0].parent) == "run"


def test_the_approximate_latency_is_the_batch_over_its_prompts() -> None:
    batch = realistic().batches[0]
    shown = row(batch)
    assert (shown.size, shown.limit) == (20, 4)
    assert shown.approximate == pytest.approx(3_195 / 20)
    # What it hides: these two slots took 60 ms and 2.6 s.
    assert [batch.slots[i].latency for i in (2, 14)] == pytest.approx([0.06, 2.6])
    assert row(batch.slots[2]).approximate is None


def test_a_batch_that_goes_on_has_no_approximate_latency() -> None:
    (batch,) = sample(running=True).batches
    assert row(batch).approximate is None


def test_times_are_in_ms_and_the_wait_lies_before_the_start() -> None:
    shown = row(realistic().batches[0].slots[14])
    assert shown.started is not None
    assert shown.ended is not None
    assert shown.started - shown.submitted == pytest.approx(595)
    assert shown.ended - shown.started == pytest.approx(2_600)


def test_the_detail_is_what_a_reader_wants_first() -> None:
    assert row_of("code", code="# a comment\n\n  x = 1\ny = 2").detail == "x = 1"
    assert row_of("code", code="# only a comment").detail == ""
    assert row_of("slot", prompt="asked", response="answered").detail == "answered"
    assert row_of("slot", prompt="asked").detail == "asked"
    assert row_of("batch", size=3, limit=2).detail == "3 prompts, 2 at once"
    assert row_of("run", question="why?").detail == "why?"


def test_an_error_has_its_type_message_and_status() -> None:
    error = {"type": "http", "message": "rate limited", "status": 429}
    assert row_of("slot", error=error).error == "http: rate limited (HTTP 429)"
    assert row_of("slot", error={"type": "timeout", "message": "late"}).error == "timeout: late"


def test_a_call_that_is_tried_again_says_why_while_it_goes_on() -> None:
    failed = {"started": 0, "ended": MS, "error": {"type": "http", "message": "busy"}, "wait": 0.5}
    assert row_of("slot", prompt="p", attempts=[failed]).detail == "attempt 2, after http: busy"
    (span,) = spans(("slot", {"attempts": [failed, {"started": MS, "ended": 3 * MS}]}))
    attempts = next(field for field in fields(span) if field.name == "attempts")
    assert attempts.text == "1. 0.001 s: http: busy, then waited 0.50 s\n2. 0.002 s: succeeded"


@pytest.mark.parametrize("text", ["a\nb\r\n\tc", "\x1b[31mred\x1b[0m", "\x00\x07", "\u2028\u202e"])
def test_control_characters_are_folded_in_what_is_on_one_line(text: str) -> None:
    for trace in (sample(text=text), everywhere(text)):
        for span in trace.find():
            shown = row(span)
            for part in (shown.detail, shown.error, shown.model):
                assert part.isprintable()


def test_one_line_is_never_longer_than_asked_for() -> None:
    assert one_line("a  b\n\nc", 10) == "a b c"
    assert one_line("x" * 11, 10) == "x" * 9 + "…"
    assert one_line("x" * 10, 10) == "x" * 10
    assert one_line(None, 10) == ""
    assert one_line({"a": [1, None]}, 40) == '{"a": [1, null]}'
    assert len(one_line("word " * 1_000_000, 50)) == 50


def test_rows_of_large_texts_stay_small() -> None:
    for span in sample(text="z" * 5_000_000).find():
        shown = row(span)
        assert len(shown.detail) <= DETAIL
        assert len(shown.error) <= ERROR
        assert len(shown.model) <= 80


def test_fields_are_whole_and_in_reading_order() -> None:
    trace = realistic()
    code = next(trace.find(kind="code", error=True))
    found = [(field.name, field.code) for field in fields(code)]
    assert found == [("error", False), ("code", True), ("traceback", True)]
    call = next(trace.find(kind="lm_call"))
    names = ["response", "message 1 (system)", "message 2 (user)"]  # a conversation comes last
    assert [field.name for field in fields(call)] == names
    assert len(fields(call)[1].text) == len("You answer by writing Python. ") * 40


def test_values_that_are_no_text_are_shown_as_json() -> None:
    (run,) = spans(("run", {"answer": {"codes": ["é", 1]}, "partial": 0}))
    assert [(field.name, field.text) for field in fields(run)] == [
        ("answer", '{"codes": ["é", 1]}'),
        ("partial answer", "0"),
    ]


def test_lone_surrogates_do_not_reach_the_browser() -> None:
    for span in everywhere("a\ud800b").find():
        shown = row(span)
        (shown.detail + shown.error + shown.model).encode()
        json.dumps([field.text for field in fields(span)], ensure_ascii=False).encode()


def test_the_summary_of_a_finished_run_ends_with_it() -> None:
    found = summary(realistic(), 99_999 * MS, ["a\nwarning"])
    assert (found.state, found.outcome) == ("ok", "answered")
    assert found.elapsed == pytest.approx(6_605)
    assert (found.calls, found.errors, found.in_flight, found.waiting) == (24, 2, 0, 0)
    assert found.usage_complete
    assert found.cost == pytest.approx(0.016)
    assert found.answer.startswith("31 codes are named.")
    assert found.warnings == ["a warning"]


def test_the_summary_of_a_stopped_run_says_by_what() -> None:
    found = summary(realistic(cancelled=True), 0, [])
    assert (found.state, found.outcome, found.stopped_by) == ("cancelled", "stopped", "interrupt")


def test_the_summary_of_a_run_that_goes_on_takes_its_time_from_the_clock() -> None:
    found = summary(sample(running=True), 5_000 * MS, [])
    assert (found.state, found.elapsed, found.in_flight) == ("running", 5_000, 1)
    assert not found.usage_complete


def test_the_summary_of_an_empty_trace_is_that_of_a_run_that_waits() -> None:
    found = summary(Recorder().trace, 0, [])
    assert (found.state, found.calls, found.answer) == ("waiting", 0, "")


def test_a_call_that_was_sent_again_shows_what_its_latency_is_made_of() -> None:
    recorder = Recorder(clock=(clock := Clock()))
    run = recorder.start("run", None)
    span = recorder.start("lm_call", run, prompt="p")
    failed = {"type": "http", "status": 500, "message": "down"}
    clock.forward(1_000)
    attempts = [
        {"started": 0, "ended": 200 * MS, "error": failed, "wait": 0.3},
        {"started": 600 * MS, "ended": 1_000 * MS},
    ]
    recorder.end(span, "ok", response="r", attempts=attempts)
    call = recorder.trace.tree.spans[span]
    assert [(p.begin, p.end, p.kind) for p in pieces_of(call)] == [
        (0, 200, "failed"),
        (200, 600, "pause"),
    ]
    assert (call.back_off, call.requeue_wait) == pytest.approx((0.3, 0.1))
    texts = {field.name: field.text for field in fields(call)}
    assert texts["latency"] == (
        "0.600 s in 2 requests + 0.300 s back-off + 0.100 s in the queue again"
    )
    assert texts["attempts"].splitlines() == [
        "1. 0.200 s: http: down (HTTP 500), then waited 0.30 s",
        "2. 0.400 s: succeeded",
    ]


def test_a_second_request_beside_a_slow_one_is_a_piece_of_its_own() -> None:
    (span,) = spans(
        (
            "slot",
            {
                "attempts": [
                    {"started": 0, "ended": 10 * MS, "cancelled": True},
                    {"started": 5 * MS, "ended": 10 * MS, "hedge": True},
                ]
            },
        )
    )
    assert [(p.begin, p.end, p.kind) for p in pieces_of(span)] == [(5, 10, "hedge")]
    (attempts,) = (field.text for field in fields(span) if field.name == "attempts")
    assert attempts.splitlines() == [
        "1. 0.010 s: cancelled: another one answered",
        "2. sent beside a slow one, 0.005 s: succeeded",
    ]


def test_a_text_that_is_written_shows_its_end() -> None:
    shown = row_of("lm_call", response="word " * 100 + "the last ones")
    assert shown.detail.startswith("… ")
    assert shown.detail.endswith("the last ones")
    assert shown.chars == 513


def test_variables_are_shown_in_columns_with_what_the_block_changed() -> None:
    span = next(span for span in realistic(slots=2).find(kind="code") if "changes" in span.attrs)
    shown = {field.name: field.text for field in fields(span)}["variables"].split("\n")
    assert shown == [
        "answers  list  2 items  (new)",
        "codes    int            31  (changed)",
        "draft                   (gone)",
    ]
