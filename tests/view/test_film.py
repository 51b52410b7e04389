"""A film shows the run at any time of it, exactly as it was."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from rlm_notebook.trace.trace import Trace
from rlm_notebook.view.film import FilmView
from rlm_notebook.view.rows import row
from tests.view.sample import sample


class Screen:
    """What a browser would show, from the messages alone."""

    def __init__(self, film: FilmView, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rows: dict[int, Any] = {}
        self.film: dict[str, Any] = {}
        self.summary: dict[str, Any] = {}
        self._parts: list[Any] = []
        self._view = film
        monkeypatch.setattr(film.widget, "send", self._receive)

    def ask(self, **message: Any) -> None:
        self._view._receive(None, message, [])

    def _receive(self, message: dict[str, Any]) -> None:
        self.film, self.summary = message["film"], message["summary"]
        if message["type"] == "snapshot":
            self._parts = message["rows"] if message["part"] == 0 else self._parts + message["rows"]
            if message["part"] + 1 == message["parts"]:
                self.rows = {each["id"]: each for each in self._parts}
        else:
            self.rows.update((each["id"], each) for each in message["rows"])


def at(trace: Trace, count: int) -> dict[int, Any]:
    """The rows after so many events."""
    part = Trace(trace.header)
    for event in trace.events[:count]:
        part.append(event)
    spans = part.tree.spans.values() if count < len(trace.events) else trace.tree.spans.values()
    return {span.id: msgspec.json.decode(msgspec.json.encode(row(span))) for span in spans}


@pytest.fixture
def trace() -> Trace:
    return sample()


@pytest.fixture
def screen(trace: Trace, monkeypatch: pytest.MonkeyPatch) -> Screen:
    return Screen(FilmView(trace), monkeypatch)


def test_at_any_time_it_is_the_fold_of_the_events_until_then(trace: Trace, screen: Screen) -> None:
    length = trace.tree.time
    for share in (0.0, 0.1, 0.5, 0.51, 0.9, 1.0, 0.3, 0.0, 1.0):
        t = round(length * share)
        screen.ask(type="seek", t=t / 1e6)
        count = sum(event.t <= t for event in trace.events)
        assert screen.film["position"] == count
        assert screen.rows == at(trace, count)


def test_event_by_event_forward_and_back(trace: Trace, screen: Screen) -> None:
    screen.ask(type="step", by=-len(trace.events) - 5)
    assert screen.rows == {}
    assert screen.film["position"] == 0
    for count in range(1, len(trace.events) + 1):
        screen.ask(type="step", by=1)
        assert screen.rows == at(trace, count)
    for count in range(len(trace.events) - 1, 0, -7):
        screen.ask(type="step", by=count - screen.film["position"])
        assert screen.rows == at(trace, count)


def test_the_header_is_that_of_the_time(trace: Trace, screen: Screen) -> None:
    screen.ask(type="seek", t=trace.tree.time / 2e6)
    assert screen.summary["state"] == "running"
    assert screen.summary["elapsed"] == pytest.approx(trace.tree.time / 2e6, abs=0.01)
    screen.ask(type="seek", t=1e12)
    assert screen.summary["outcome"] == "answered"


@pytest.mark.parametrize(
    "message",
    [
        {"type": "seek"},
        {"type": "seek", "t": "x"},
        {"type": "seek", "t": float("nan")},
        {"type": "step", "by": None},
        {},
        3,
    ],
)
def test_what_is_no_request_changes_nothing(trace: Trace, screen: Screen, message: Any) -> None:
    screen._view._receive(None, message, [])
    assert screen.film == {}


def test_the_saved_output_is_the_whole_run(trace: Trace, screen: Screen) -> None:
    screen.ask(type="seek", t=0)
    bundle = screen._view.mimebundle()
    assert set(bundle) == {"text/html", "text/plain"}
    assert "slot 19" in bundle["text/html"]
