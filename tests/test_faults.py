"""Everything that goes wrong between a slot and its provider, end to end through
``llm_query_batched``: a real REPL process, a real server, a trace.

For each fault: the other slots are right and in order, the failed slot says what happened in one
line, the trace has every request, the run goes on.
"""

from __future__ import annotations

import asyncio
import json
import re
import ssl
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from functools import partial
from typing import Any

import pytest
import trustme

from rlm_notebook import RLM, Result, Trace, live
from rlm_notebook.lm.openai import OpenAILM
from rlm_notebook.lm.protocol import Message, Request
from rlm_notebook.retry import RetryPolicy
from rlm_notebook.trace.tree import Span
from tests.fakes import FakeLM, answering
from tests.servers.handle import OpenAIServer
from tests.servers.openai_server import Rule
from tests.servers.raw_server import RawServer

ATTEMPTS = 3
REFUSALS = 4
BAD = "number 1 is bad"
PROMPTS = ["number 0", BAD, "number 2", "number 3", "number 4"]
ROOT = answering("llm_query_batched(context)")


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Back-off in milliseconds."""
    policy = partial(RetryPolicy, first=0.002, refusals=REFUSALS)
    monkeypatch.setattr(live, "RetryPolicy", policy)


def ask(url: str, prompts: Any = PROMPTS, **settings: Any) -> Result:
    leaf = OpenAILM("m", base_url=url, timeout=settings.get("call_timeout"))
    rlm = RLM(FakeLM(ROOT), sub_model=leaf, **{"max_attempts": ATTEMPTS, **settings})
    return rlm.completion(prompts, "q")


def check_others(result: Result, prompts: list[str] = PROMPTS, bad: str = BAD) -> Span:
    """All slots but one are right and in order; that one is returned, from the file on disk."""
    assert result.outcome == "answered"
    for prompt, answer in zip(prompts, result.answer, strict=True):
        if prompt != bad:
            assert answer == f"answer to: {prompt}"
    assert result.trace.path is not None
    slots = Trace.load(result.trace.path).slots
    assert [slot.prompt for slot in slots] == prompts
    return slots[prompts.index(bad)]


def requests_of(slot: Span) -> int:
    return max(1, len(slot.attempts))


@dataclass
class Fault:
    """What the server does with the bad prompt, and what is to be seen."""

    name: str
    rule: Rule
    says: str
    type: str = "http"
    status: int | None = None
    attempts: int = 1
    settings: dict[str, Any] = field(default_factory=dict)


def said(message: str, **more: Any) -> str:
    return json.dumps({"error": {"message": message, **more}})


SOON = format_datetime(datetime.now(UTC) - timedelta(seconds=60), usegmt=True)
SLOW = r"gave no answer within|no answer from"
FAULTS = [
    Fault("429", Rule(status=429, body=said("slow down")), "429.*slow down", status=429,
          attempts=REFUSALS),
    Fault("429 seconds", Rule(status=429, headers={"retry-after": "0.01"}), "429", status=429,
          attempts=REFUSALS),
    Fault("429 date", Rule(status=429, headers={"retry-after": SOON}), "429", status=429,
          attempts=REFUSALS),
    Fault("429 ms", Rule(status=429, headers={"retry-after-ms": "10"}), "429", status=429,
          attempts=REFUSALS),
    Fault("500", Rule(status=500, body=said("boom")), "500 Internal Server Error: boom",
          status=500, attempts=ATTEMPTS),
    Fault("502 html", Rule(status=502, headers={"content-type": "text/html"},
                           body="<html>\n<h1>Bad\nGateway</h1></html>"),
          "502 Bad Gateway: <html> <h1>Bad Gateway</h1></html>", status=502, attempts=ATTEMPTS),
    Fault("400 too long", Rule(status=400, body=said("maximum context length is 8192 tokens",
                                                     code="context_length_exceeded")),
          "400 Bad Request: maximum context length", status=400),
    Fault("closed before an answer", Rule(fail="drop"), "closed the connection", "disconnected",
          attempts=ATTEMPTS),
    Fault("closed in the answer", Rule(fail="cut"), "closed the connection", "disconnected",
          attempts=ATTEMPTS),
    Fault("never answers", Rule(fail="hang"), SLOW, "timeout", settings={"call_timeout": 0.6}),
    Fault("no JSON", Rule(body="It's fine."), "no JSON: It's fine.", "protocol"),
    Fault("another shape", Rule(body='{"choices": {"a": 1}}'), "no chat completion", "protocol"),
    Fault("another object", Rule(body='{"id": 7}'), "holds no choices", "protocol"),
    Fault("empty choices", Rule(body='{"choices": []}'), "holds no choices", "protocol"),
    Fault("error with status 200", Rule(body=said("upstream failed", code=503)),
          "upstream failed", status=503, attempts=ATTEMPTS),
]  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_stays_in_its_slot(openai_server: OpenAIServer, fault: Fault) -> None:
    fault.rule.match = "bad"
    openai_server.script(fault.rule)
    result = ask(openai_server.url, **fault.settings)
    slot = check_others(result)
    answer = result.answer[1]
    assert answer.startswith("Error: ")
    assert "\n" not in answer
    assert re.search(fault.says, answer)
    assert slot.state == "error"
    assert slot.error is not None
    assert (slot.error["type"], slot.error.get("status")) == (fault.type, fault.status)
    assert f"Error: {slot.error['message']}" == answer
    asked = [entry.prompt for entry in openai_server.log()].count(BAD)
    assert requests_of(slot) == asked == fault.attempts
    if fault.attempts > 1:
        assert all(attempt["error"]["type"] == fault.type for attempt in slot.attempts)
        assert all(attempt["wait"] >= 0 for attempt in slot.attempts[:-1])


def test_a_401_keeps_the_rest_from_being_sent(openai_server: OpenAIServer) -> None:
    openai_server.script(Rule(status=401, body=said("bad key")))
    prompts = [f"number {index}" for index in range(40)]
    result = ask(openai_server.url, prompts, batch_max_concurrent=4)
    assert result.outcome == "answered"
    states = [slot.state for slot in result.trace.slots]
    sent = len(openai_server.log())
    assert sent <= 8
    assert states.count("error") == sent
    assert states.count("not_sent") == 40 - sent
    assert result.answer[0].startswith("Error: openai/m at http://127.0.0.1")
    assert result.answer[-1].startswith("Error: not sent: openai/m at ")
    assert result.trace.slots[-1].latency is None
    assert result.trace.tree.totals.calls == 1 + sent


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("before", "closed the connection"),
        ("during", "closed the connection|did not answer in HTTP"),
        ("after", "closed the connection"),
    ],
)
def test_a_connection_that_is_reset(fault: str, says: str) -> None:
    prompts = ["number 0", "number 1", f"reset {fault}", "number 3"]
    with RawServer() as server:
        result = ask(server.url, prompts)
        asked = server.asked[prompts[2]]
    slot = check_others(result, prompts, prompts[2])
    assert re.search(says, result.answer[2])
    assert slot.state == "error"
    assert requests_of(slot) == asked
    assert slot.error is not None
    assert asked == (ATTEMPTS if slot.error["type"] == "disconnected" else 1)


def test_an_answer_that_trickles_ends_at_its_time() -> None:
    prompts = ["number 0", "a trickle", "number 2"]
    with RawServer() as server:
        result = ask(server.url, prompts, call_timeout=0.8)
    slot = check_others(result, prompts, prompts[1])
    assert slot.error is not None
    assert slot.error["type"] == "timeout"
    assert re.search(SLOW, result.answer[1])
    assert slot.latency is not None
    assert 0.7 < slot.latency < 3


def test_a_server_that_is_not_there() -> None:
    with RawServer() as server:
        url = server.url
    result = ask(url, ["a", "b"])
    assert result.outcome == "answered"
    for answer, slot in zip(result.answer, result.trace.slots, strict=True):
        assert re.search("no server answers at .*: is it running", answer)
        assert slot.error is not None
        assert slot.error["type"] == "connect"
        assert requests_of(slot) == ATTEMPTS


@pytest.mark.parametrize("kind", ["plain", "self-signed"])
def test_tls_that_fails_is_hopeless_and_not_tried_again(
    openai_server: OpenAIServer, kind: str
) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("127.0.0.1").configure_cert(context)
    with RawServer(context) as server:
        plain = openai_server.url.replace("http://", "https://")
        url = plain if kind == "plain" else server.url
        result = ask(url, ["a"] * 30, batch_max_concurrent=2)
    assert result.outcome == "answered"
    first, *_, last = result.trace.slots
    assert "no secure connection to https://127.0.0.1" in result.answer[0]
    assert first.error is not None
    assert (first.error["type"], requests_of(first)) == ("tls", 1)
    assert last.state == "not_sent"


NULLS = [
    ({}, "null", "Error: the model returned no content (stop)"),
    ({"refusal": "I will not."}, "ok", "I will not."),
    ({"tool_calls": [{"id": "1"}]}, "null", "Error: the model returned no content (stop)"),
]


@pytest.mark.parametrize(("message", "state", "answer"), NULLS)
def test_content_that_is_null(
    openai_server: OpenAIServer, message: dict[str, Any], state: str, answer: str
) -> None:
    openai_server.script(Rule(match="bad", content=None, message=message))
    result = ask(openai_server.url)
    slot = check_others(result)
    assert (slot.state, result.answer[1]) == (state, answer)


def test_an_answer_that_was_cut_at_its_length_is_kept_and_marked(
    openai_server: OpenAIServer,
) -> None:
    openai_server.script(Rule(match="bad", content="half an ans", finish_reason="length"))
    result = ask(openai_server.url)
    slot = check_others(result)
    assert (slot.state, result.answer[1]) == ("ok", "half an ans")
    assert slot.attrs["finish_reason"] == "length"


def test_missing_usage_is_unknown_and_the_slot_is_fine(openai_server: OpenAIServer) -> None:
    openai_server.script(Rule(match="bad", usage=None))
    result = ask(openai_server.url)
    slot = check_others(result)
    assert (slot.state, result.answer[1]) == ("ok", f"answer to: {BAD}")
    assert (slot.usage.input_tokens, slot.usage.complete) == (None, False)
    assert not result.usage.complete


ODD = ["a\x00b", "a\ud800b", "\udfff", "\u2028\x85\r\n", "\U0001f600"]


def test_odd_characters_in_prompt_and_answer(openai_server: OpenAIServer) -> None:
    openai_server.script(
        Rule(match="a\x00b"),
        Rule(match="number", body='{"choices": [{"message": {"content": "x\\ud800y\\u0000z"}}]}'),
    )
    code = f"llm_query_batched({[*ODD, 'number']!r})"
    rlm = RLM(FakeLM(answering(code)), sub_model=OpenAILM("m", base_url=openai_server.url))
    result = rlm.completion("c", "q")
    right = [text.encode("utf-16", "surrogatepass").decode("utf-16", "replace") for text in ODD]
    assert result.answer == [*(f"answer to: {text}" for text in right), "x\ufffdy\x00z"]
    assert result.trace.path is not None
    assert [slot.state for slot in Trace.load(result.trace.path).slots] == ["ok"] * 6


def test_a_prompt_of_five_million_characters(openai_server: OpenAIServer) -> None:
    openai_server.script(Rule(match="x" * 100, content="long"))
    code = "llm_query_batched(['a', 'x' * 5_000_000, 'b'])"
    rlm = RLM(FakeLM(answering(code)), sub_model=OpenAILM("m", base_url=openai_server.url))
    result = rlm.completion("c", "q")
    assert result.answer == ["answer to: a", "long", "answer to: b"]
    assert sorted(len(entry.prompt) for entry in openai_server.log()) == [1, 1, 5_000_000]


def test_ten_thousand_prompts_in_one_batch(openai_server: OpenAIServer) -> None:
    openai_server.script(Rule(match="#77 ", status=400, body=said("no")))
    code = 'llm_query_batched([f"#{i} " for i in range(10_000)])'
    rlm = RLM(FakeLM(answering(code)), sub_model=OpenAILM("m", base_url=openai_server.url))
    result = rlm.completion("c", "q")
    assert len(result.answer) == 10_000
    assert "400 Bad Request: no" in result.answer.pop(77)
    right = [f"answer to: #{index} " for index in range(10_000) if index != 77]
    assert result.answer == right
    assert len(result.trace.slots) == 10_000


@pytest.mark.parametrize("count", [0, 1])
def test_an_empty_batch_and_a_batch_of_one(openai_server: OpenAIServer, count: int) -> None:
    result = ask(openai_server.url, ["a"][:count] or {"no": "prompts"})
    if count:
        assert result.answer == ["answer to: a"]
        return
    lm = FakeLM(answering("llm_query_batched([])"))
    empty = RLM(lm, sub_model=OpenAILM("m", base_url=openai_server.url)).completion("c", "q")
    assert empty.answer == []
    (batch,) = empty.trace.batches
    assert (batch.state, batch.slots, batch.attrs["size"]) == ("ok", [], 0)


def test_prompts_that_are_no_str(openai_server: OpenAIServer) -> None:
    code = "llm_query_batched(['a', 7, None, ['x'], b'y', 'b'])"
    rlm = RLM(FakeLM(answering(code)), sub_model=OpenAILM("m", base_url=openai_server.url))
    result = rlm.completion("c", "q")
    assert [result.answer[0], result.answer[-1]] == ["answer to: a", "answer to: b"]
    assert result.answer[1:5] == [
        f"Error: a prompt must be a str, not {kind}"
        for kind in ("int", "NoneType", "list", "bytes")
    ]
    assert [slot.state for slot in result.trace.slots] == ["ok", *["not_sent"] * 4, "ok"]
    assert len(openai_server.log()) == 2


def test_one_model_on_two_loops_and_in_two_threads(openai_server: OpenAIServer) -> None:
    lm = OpenAILM("m", base_url=openai_server.url)
    found: dict[int, Any] = {}

    def batches(number: int) -> None:
        root = FakeLM(answering(f"llm_query_batched(['{number}'] * 20)"))
        found[number] = RLM(root, sub_model=lm).completion("c", "q").answer

    def alone(number: int) -> None:
        async def several() -> list[str | None]:
            requests = [Request((Message("user", str(number)),))] * 20
            try:
                answers = await asyncio.gather(*[lm.complete(request) for request in requests])
                return [answer.text for answer in answers]
            finally:
                await lm.close()

        found[number] = asyncio.run(several())

    work = [(batches, 0), (batches, 1), (alone, 2), (alone, 3)]
    threads = [threading.Thread(target=target, args=[number]) for target, number in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {number: [f"answer to: {number}"] * 20 for number in range(4)}


def test_a_proxy_in_the_environment_does_not_hide_this_machine(
    openai_server: OpenAIServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    assert ask(openai_server.url).answer == [f"answer to: {prompt}" for prompt in PROMPTS]


@pytest.fixture
def set_back(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The system clock jumps back an hour, a moment from now."""
    real, jump = time.time, time.monotonic() + 0.3
    monkeypatch.setattr(time, "time", lambda: real() - 3_600 * (time.monotonic() > jump))
    yield
    monkeypatch.undo()


@pytest.mark.usefixtures("set_back")
def test_a_clock_that_is_set_back_changes_no_time(openai_server: OpenAIServer) -> None:
    openai_server.script(Rule(match="bad", status=503, times=1), Rule(delay=0.2))
    slot = check_others(ask(openai_server.url, PROMPTS * 2, batch_max_concurrent=5), PROMPTS * 2)
    assert slot.latency is not None
    assert 0.2 <= slot.latency < 2
    assert 0 <= slot.back_off < 1


async def test_a_loop_that_is_blocked_stretches_no_latency(openai_server: OpenAIServer) -> None:
    openai_server.script(Rule(delay=0.1))
    prompts = [f"number {index}" for index in range(20)]
    leaf = OpenAILM("m", base_url=openai_server.url)
    run = asyncio.create_task(
        RLM(FakeLM(ROOT), sub_model=leaf, batch_max_concurrent=5).acompletion(prompts, "q")
    )
    while not openai_server.log():
        await asyncio.sleep(0.01)
    time.sleep(2)  # a user's cell
    served = openai_server.log()
    assert len(served) == 20  # the batch went on meanwhile
    result = await run
    assert result.answer == [f"answer to: {prompt}" for prompt in prompts]
    for slot in result.trace.slots:
        assert slot.latency is not None
        assert 0.1 <= slot.latency < 0.6
    (batch,) = result.trace.batches
    assert (batch.duration or 0) < 1.8
