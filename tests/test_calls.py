"""Retries in one layer: what is sent again, after how long, and that every attempt is recorded."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from rlm_notebook import RLM, Result, Trace
from rlm_notebook.errors import LMError
from rlm_notebook.lm.openai import OpenAILM
from rlm_notebook.provider_limit import limit_of
from rlm_notebook.retry import RetryPolicy
from tests.fakes import FakeLM, answering
from tests.servers.handle import OpenAIServer
from tests.servers.openai_server import Rule

RATE_LIMITED = {"retry-after": "0.05"}


def run(server: OpenAIServer, prompts: list[str], **settings: Any) -> Result:
    root = FakeLM(answering(f"llm_query_batched({prompts!r})"))
    leaf = OpenAILM("m", base_url=server.url)
    return RLM(root, sub_model=leaf, **settings).completion("c", "q")


def error(status: int | None = None, kind: str = "http", after: float | None = None) -> LMError:
    return LMError("x", type=kind, status=status, retry_after=after)


@pytest.mark.parametrize("status", [408, 409, 500, 502, 503, 529])
def test_what_may_pass_by_is_retried_up_to_the_stated_attempts(status: int) -> None:
    policy = RetryPolicy(attempts=3, dice=lambda: 0.5)
    assert policy.wait(1, error(status)) is not None
    assert policy.wait(2, error(status)) is not None
    assert policy.wait(3, error(status)) is None


def test_refusals_for_the_rate_are_counted_apart() -> None:
    policy = RetryPolicy(attempts=3, refusals=5)
    assert policy.wait(2, error(429), 4) is not None
    assert policy.wait(3, error(500), 4) is None
    assert policy.wait(0, error(429), 5) is None
    assert RetryPolicy(attempts=1).wait(0, error(429), 1) is None


@pytest.mark.parametrize("status", [400, 401, 403, 404, 413, 422])
def test_what_stays_is_not_retried(status: int) -> None:
    assert RetryPolicy().wait(1, error(status)) is None


@pytest.mark.parametrize(
    ("kind", "retried"),
    [("connect", True), ("disconnected", True), ("timeout", False), ("protocol", False),
     ("quota", False), ("simulated", False), ("ValueError", False)],
)  # fmt: skip
def test_failures_without_a_status_are_judged_by_their_type(kind: str, retried: bool) -> None:
    assert (
        RetryPolicy().wait(1, error(500 if kind == "simulated" else None, kind)) is not None
    ) is retried


def test_waits_double_are_jittered_and_have_an_upper_end() -> None:
    low = RetryPolicy(attempts=20, dice=lambda: 0.0)
    high = RetryPolicy(attempts=20, dice=lambda: 0.999999)
    for failed, upper in ((1, 0.5), (2, 1.0), (3, 2.0), (12, 20.0)):
        assert low.wait(failed, error(500)) == pytest.approx(upper / 2)
        assert high.wait(failed, error(500)) == pytest.approx(upper, rel=1e-3)


def test_the_servers_own_wait_is_kept_to() -> None:
    wait = RetryPolicy(dice=lambda: 0.999).wait(1, error(429, after=7))
    assert wait is not None
    assert 7 <= wait <= 7.8


def test_a_call_that_succeeds_later_is_ok_and_every_attempt_is_in_the_trace(
    openai_server: OpenAIServer,
) -> None:
    openai_server.script(
        Rule(match="b", status=429, headers=RATE_LIMITED, body="{}", times=2),
        Rule(match="b", delay=0.05),
    )
    result = run(openai_server, ["a", "b", "c"])
    assert result.answer == ["answer to: a", "answer to: b", "answer to: c"]
    first, second, _ = result.trace.slots
    assert first.attempts == []
    assert [a.get("error", {}).get("status") for a in second.attempts] == [429, 429, None]
    assert [each.prompt for each in openai_server.log()].count("b") == 3
    # Latency = attempts + back-off; the queue wait is apart.
    spent = sum((a["ended"] - a["started"]) * 1e-9 for a in second.attempts)
    assert second.back_off >= 0.1
    assert second.latency == pytest.approx(spent + second.back_off + second.requeue_wait, abs=0.05)
    assert result.trace.path is not None
    assert Trace.load(result.trace.path).slots[1].attempts == second.attempts


def test_a_dead_slot_costs_the_stated_attempts_and_no_more(openai_server: OpenAIServer) -> None:
    openai_server.script(Rule(match="dead", status=503, headers=RATE_LIMITED, body="{}"))
    result = run(openai_server, ["a", "dead", "c"], max_attempts=3)
    assert [slot.state for slot in result.trace.slots] == ["ok", "error", "ok"]
    assert [each.prompt for each in openai_server.log()].count("dead") == 3
    assert len(result.trace.slots[1].attempts) == 3
    assert "503" in result.answer[1]


@pytest.mark.parametrize("fail", ["drop", "cut"])
def test_a_connection_that_breaks_is_tried_again(openai_server: OpenAIServer, fail: Any) -> None:
    openai_server.script(Rule(match="b", fail=fail, times=1))
    result = run(openai_server, ["a", "b"])
    assert result.answer == ["answer to: a", "answer to: b"]
    assert result.trace.slots[1].attempts[0]["error"]["type"] == "disconnected"


def test_a_retry_never_runs_past_the_time_of_the_call(openai_server: OpenAIServer) -> None:
    openai_server.script(Rule(match="b", status=429, headers={"retry-after": "60"}, body="{}"))
    result = run(openai_server, ["a", "b"], call_timeout=5)
    assert result.trace.slots[1].state == "error"
    assert result.seconds < 4
    assert [each.prompt for each in openai_server.log()].count("b") == 1


def test_the_root_call_is_retried_too(openai_server: OpenAIServer) -> None:
    openai_server.script(
        Rule(status=500, headers=RATE_LIMITED, body="{}", times=1),
        Rule(content=answering("42")),
    )
    result = RLM("openai/m", base_url=openai_server.url).completion("c", "q")
    assert result.answer == 42
    call = next(result.trace.find(kind="lm_call"))
    assert len(call.attempts) == 2


@pytest.mark.parametrize(
    ("rule", "word"),
    [
        (Rule(match="p", status=401, body='{"error": {"message": "bad key"}}'), "401"),
        (Rule(match="p", status=404, body='{"error": {"message": "no model"}}'), "404"),
        (Rule(match="p", status=429, body='{"error": {"code": "insufficient_quota"}}'), "429"),
    ],
)
def test_a_hopeless_failure_stops_the_rest_of_the_batch_from_being_sent(
    openai_server: OpenAIServer, rule: Rule, word: str
) -> None:
    openai_server.script(rule)
    result = run(openai_server, [f"p{i}" for i in range(20)], batch_max_concurrent=2)
    states = [slot.state for slot in result.trace.slots]
    assert states[:2] == ["error", "error"]
    assert set(states[2:]) == {"not_sent"}
    assert len(openai_server.log()) == 2
    assert all(answer.startswith("Error: ") for answer in result.answer)
    assert all("not sent: " in answer and word in answer for answer in result.answer[2:])
    last = result.trace.slots[-1].error
    assert last is not None
    assert last["type"] == "not_sent"
    assert result.trace.tree.totals.calls == 3


def test_long_prompts_start_first_and_answers_keep_the_order_of_the_prompts() -> None:
    prompts = ["a" * 10, "b" * 50_000, "c" * 20, "d" * 5_000, "e" * 10]
    root = FakeLM(answering(f"[p[:1] for p in llm_query_batched({prompts!r})]"), leaf=lambda p: p)
    result = RLM(root, batch_max_concurrent=1).completion("c", "q")
    assert result.answer == ["a", "b", "c", "d", "e"]
    assert [prompt[:1] for prompt in root.subs] == ["b", "d", "a", "c", "e"]


def test_a_call_that_waits_for_its_next_attempt_can_be_cancelled() -> None:
    counter = itertools.count()

    def leaf(prompt: str) -> Any:
        next(counter)
        raise LMError("busy", type="http", status=429, retry_after=600)

    # A provider of its own: what it asks for holds for all its models.
    root = FakeLM(answering("llm_query('x')"), leaf=leaf, name="busy/lm")
    result = RLM(root, timeout=0.7, call_timeout=10_000).completion("c", "q")
    assert (result.outcome, result.stopped_by) == ("stopped", "timeout")
    assert next(counter) == 1
    call = next(result.trace.find(function="llm_query"))
    assert call.state == "cancelled"
    assert call.attempts[0]["error"]["status"] == 429


@pytest.mark.parametrize(("asks", "rest"), [(3_600, "not_sent"), (0.2, "error")])
def test_a_wait_that_no_call_can_afford_keeps_the_rest_from_being_sent(
    asks: float, rest: str
) -> None:
    def leaf(prompt: str) -> str:
        raise LMError("closed", type="http", status=503, retry_after=asks)

    lm = FakeLM(answering("llm_query_batched([str(i) for i in range(6)])"), leaf=leaf)
    result = RLM(lm, batch_max_concurrent=2, call_timeout=0.3).completion("c", "q")
    states = [slot.state for slot in result.trace.slots]
    assert states[0] == "error"
    assert states[-1] == rest


def test_the_run_that_began_last_sets_the_limit_and_calls_do_not_reset_it() -> None:
    lm = FakeLM(answering("llm_query_batched(['a', 'b', 'c'])"))
    first = RLM(lm, provider_max_concurrent=8).completion("c", "q")
    limit = limit_of(lm, 8)
    limit.allowed = 2.0  # as after a 429
    second = RLM(lm, provider_max_concurrent=8).completion("c", "q")
    assert first.answer == second.answer == ["A", "B", "C"]
    assert limit.allowed < 8
