"""The server's own behaviour, where a test or a measurement depends on it."""

from __future__ import annotations

import json
from urllib.error import HTTPError
from urllib.request import ProxyHandler, Request, build_opener

import pytest

from tests.servers import openai_server as server_module
from tests.servers.handle import OpenAIServer
from tests.servers.openai_server import Allowance, Rule


class Clock:
    """Stands in for the module ``time``."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(server_module, "time", clock)
    return clock


def status(server: OpenAIServer) -> tuple[int, str | None]:
    """Of one request, with its Retry-After."""
    body = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
    request = Request(f"{server.url}/chat/completions", json.dumps(body).encode())
    try:
        with build_opener(ProxyHandler({})).open(request, timeout=10) as answer:
            return answer.status, answer.headers.get("retry-after")
    except HTTPError as refused:
        with refused:
            return refused.code, refused.headers.get("retry-after")


def test_the_bucket_lets_a_burst_through_and_then_the_rate(clock: Clock) -> None:
    allowance = Allowance(Rule(per_second=20.0, burst=20.0))
    assert [allowance.take() for _ in range(25)] == [True] * 20 + [False] * 5
    clock.now = 0.25
    assert [allowance.take() for _ in range(7)] == [True] * 5 + [False] * 2


def test_the_bucket_saves_up_no_more_than_a_burst(clock: Clock) -> None:
    allowance = Allowance(Rule(per_second=20.0, burst=3.0))
    clock.now = 1_000.0
    assert [allowance.take() for _ in range(5)] == [True] * 3 + [False] * 2


def test_a_refused_request_costs_nothing(clock: Clock) -> None:
    allowance = Allowance(Rule(per_second=2.0, burst=1.0))
    taken = 0
    for step in range(101):
        clock.now = step / 10
        taken += allowance.take()
    assert taken == 21  # one at once, then 2 a second for 10 s


def test_beyond_the_bucket_the_answer_is_429_without_a_retry_after(
    openai_server: OpenAIServer,
) -> None:
    openai_server.script(Rule(per_second=0.001, burst=2.0))
    assert [status(openai_server) for _ in range(4)] == [(200, None)] * 2 + [(429, None)] * 2


def test_a_new_script_has_a_full_bucket(openai_server: OpenAIServer) -> None:
    for _ in range(2):
        openai_server.script(Rule(per_second=0.001, burst=1.0))
        assert [status(openai_server)[0] for _ in range(2)] == [200, 429]


def test_other_rules_are_not_limited(openai_server: OpenAIServer) -> None:
    openai_server.script(Rule(match="other", per_second=0.001, burst=1.0))
    assert {status(openai_server)[0] for _ in range(5)} == {200}
