"""Streamed answers, of both protocols: text as it comes, usage at the end, cuts are errors."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from rlm_notebook import RLM, Trace
from rlm_notebook.errors import LMError, RunError
from rlm_notebook.lm.anthropic import AnthropicLM
from rlm_notebook.lm.http_model import HTTPModel
from rlm_notebook.lm.openai import OpenAILM
from rlm_notebook.lm.protocol import Message, Request, Response, StreamingLM, Usage
from rlm_notebook.lm.provider_settings import ProviderSettings
from tests.fakes import answering
from tests.servers.handle import OpenAIServer
from tests.servers.openai_server import Rule

KINDS = pytest.mark.parametrize("kind", [OpenAILM, AnthropicLM])
ROOT = answering("1 + 1")
SMILE = "caf\u00e9 \U0001f600"


async def streamed(lm: HTTPModel, prompt: str = "hello you") -> tuple[list[str], Response]:
    pieces: list[str] = []
    try:
        request = Request((Message("user", prompt),), "root")
        return pieces, await lm.stream(request, pieces.append)
    finally:
        await lm.close()


async def failure(lm: HTTPModel) -> LMError:
    with pytest.raises(LMError) as caught:
        await streamed(lm)
    assert "\n" not in str(caught.value)
    return caught.value


def events(*data: Any, end: str = "data: [DONE]\n\n") -> list[str]:
    """Chunks as the server sends them, one character a byte."""
    texts = [each if isinstance(each, str) else json.dumps(each) for each in data]
    return [f"data: {text}\n\n".encode().decode("latin-1") for text in texts] + [end]


def chunk(content: str | None = None, reason: str | None = None, **more: Any) -> dict[str, Any]:
    return {"choices": [{"delta": {"content": content}, "finish_reason": reason}], **more}


@KINDS
async def test_the_text_comes_in_pieces_and_the_usage_at_the_end(
    kind: type[HTTPModel], openai_server: OpenAIServer
) -> None:
    pieces, response = await streamed(kind("m", base_url=openai_server.url))
    assert len(pieces) > 2
    assert "".join(pieces) == response.text == "answer to: hello you"
    assert response == Response(response.text, Usage(7, 3), "stop", "m")
    assert openai_server.log()[0].body["stream"] is True


@KINDS
async def test_a_text_arrives_before_the_answer_is_complete(
    kind: type[HTTPModel], openai_server: OpenAIServer
) -> None:
    openai_server.script(Rule(gap=0.05))
    lm = kind("m", base_url=openai_server.url)
    loop, times = asyncio.get_running_loop(), []
    request = Request((Message("user", "a b c d"),), "root")
    await lm.stream(request, lambda text: times.append(loop.time()))
    end = loop.time()
    assert end - times[0] > 0.15
    await lm.close()


@KINDS
async def test_a_stream_that_is_cut_is_an_error_of_the_call(
    kind: type[HTTPModel], openai_server: OpenAIServer
) -> None:
    openai_server.script(Rule(fail="cut"))
    error = await failure(kind("m", base_url=openai_server.url))
    assert error.type == "disconnected"
    assert error.transient


@KINDS
async def test_a_stream_that_ends_early_without_an_error_is_cut_too(
    kind: type[HTTPModel], openai_server: OpenAIServer
) -> None:
    start = {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "a"}}
    openai_server.script(Rule(raw=events({**chunk("a"), **start}, end="")))
    error = await failure(kind("m", base_url=openai_server.url))
    assert error.type == "disconnected"
    assert "cut" in str(error)


async def test_a_stream_may_end_without_done_and_without_usage(openai_server: OpenAIServer) -> None:
    openai_server.script(Rule(done=False, usage=None))
    _, response = await streamed(OpenAILM("m", base_url=openai_server.url))
    assert response.text == "answer to: hello you"
    assert response.usage == Usage(complete=False)


async def test_a_chunk_may_be_split_anywhere_even_inside_a_character(
    openai_server: OpenAIServer,
) -> None:
    line = f"data: {json.dumps(chunk(SMILE + chr(0x2028), 'stop'), ensure_ascii=False)}\n\n"
    openai_server.script(Rule(raw=list(line.encode().decode("latin-1")), gap=0.0005))
    pieces, response = await streamed(OpenAILM("m", base_url=openai_server.url))
    assert response.text == SMILE + "\u2028"
    assert pieces == [response.text]


async def test_line_ends_and_comments_of_all_kinds_are_read(openai_server: OpenAIServer) -> None:
    text = json.dumps(chunk("a")), json.dumps(chunk("b", "stop"))
    openai_server.script(
        Rule(raw=[f": hm\r\n\r\ndata:{text[0]}\r\n\r\nevent: x\rdata: {text[1]}\r\r"])
    )
    _, response = await streamed(OpenAILM("m", base_url=openai_server.url))
    assert response.text == "ab"


@pytest.mark.parametrize(
    ("data", "kind", "status", "says"),
    [
        ("{nonsense", "protocol", None, "no JSON"),
        ([1], "protocol", None, "no chunk of a chat completion"),
        ({"error": {"message": "overloaded", "code": 503}}, "http", 503, "overloaded"),
        ({"error": {"message": "slow down", "type": "rate_limit_error"}}, "http", 429, "slow"),
    ],
)
async def test_what_goes_wrong_in_a_stream_is_said(
    openai_server: OpenAIServer, data: Any, kind: str, status: int | None, says: str
) -> None:
    openai_server.script(Rule(raw=events(chunk("a"), data)))
    error = await failure(OpenAILM("m", base_url=openai_server.url))
    assert (error.type, error.status) == (kind, status)
    assert says in str(error)


async def test_an_error_event_of_the_messages_api_has_its_status(
    openai_server: OpenAIServer,
) -> None:
    blame = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
    openai_server.script(Rule(raw=events(blame)))
    lm = AnthropicLM("m", base_url=openai_server.url)
    error = await failure(lm)
    assert (error.type, error.status) == ("http", 529)
    assert error.transient


async def test_a_refusal_and_odd_chunks_are_read(openai_server: OpenAIServer) -> None:
    openai_server.script(
        Rule(
            raw=events(
                {"choices": [{"delta": {"refusal": "I will "}}]},
                {"choices": [{"delta": {"refusal": "not."}}]},
                {"choices": [{"delta": None, "finish_reason": "stop"}]},
                {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 2}},
            )
        )
    )
    _, response = await streamed(OpenAILM("m", base_url=openai_server.url))
    assert (response.text, response.finish_reason) == ("I will not.", "refusal")
    assert response.usage == Usage(1, 2)


async def test_a_server_that_ignores_stream_still_answers(openai_server: OpenAIServer) -> None:
    whole = {"choices": [{"message": {"content": "whole"}, "finish_reason": "stop"}]}
    openai_server.script(Rule(body=json.dumps(whole)))
    pieces, response = await streamed(OpenAILM("m", base_url=openai_server.url))
    assert (pieces, response.text) == ([], "whole")


async def test_an_http_error_is_the_same_as_without_a_stream(openai_server: OpenAIServer) -> None:
    openai_server.script(Rule(status=401, body='{"error": {"message": "bad key"}}'))
    error = await failure(OpenAILM("m", base_url=openai_server.url))
    assert (error.type, error.status) == ("http", 401)


def test_a_server_that_cannot_stream_is_asked_again_without(openai_server: OpenAIServer) -> None:
    refusal = '{"error": {"message": "stream_options is not supported"}}'
    openai_server.script(
        Rule(times=1, status=400, body=refusal), Rule(content=ROOT), Rule(content=ROOT)
    )
    result = RLM(OpenAILM("m", base_url=openai_server.url)).completion("c", "q")
    assert result.answer == 2
    call = next(result.trace.find(kind="lm_call"))
    assert [each.get("error", {}).get("type") for each in call.attempts] == ["no_stream", None]
    assert call.attempts[0]["wait"] < 0.1
    assert [entry.body.get("stream") for entry in openai_server.log()] == [True, None]


def test_streaming_can_be_turned_off(openai_server: OpenAIServer) -> None:
    openai_server.script(Rule(content=ROOT))
    settings = ProviderSettings(stream=False)
    lm = OpenAILM("m", base_url=openai_server.url, settings=settings)
    assert RLM(lm).completion("c", "q").answer == 2
    assert "stream" not in openai_server.log()[0].body


def test_the_trace_gets_text_as_it_comes_and_the_rates(openai_server: OpenAIServer) -> None:
    openai_server.script(Rule(content=ROOT, gap=0.02, delay=0.1))
    result = RLM(OpenAILM("m", base_url=openai_server.url)).completion("c", "q")
    call = next(result.trace.find(kind="lm_call"))
    texts = [e.attrs["text"] for e in result.trace.events if type(e).__name__ == "SpanText"]
    assert len(texts) > 2
    assert "".join(texts) == call.response == ROOT
    assert call.time_to_first_token is not None
    assert 0.1 <= call.time_to_first_token < (call.latency or 0)
    assert call.tokens_per_second == pytest.approx(
        3 / ((call.latency or 0) - call.time_to_first_token), rel=0.01
    )
    assert result.trace.path is not None
    again = next(Trace.load(result.trace.path).find(kind="lm_call"))
    assert again.response == ROOT
    assert again.time_to_first_token == call.time_to_first_token


def test_a_root_answer_that_is_cut_is_asked_again_from_the_start(
    openai_server: OpenAIServer,
) -> None:
    openai_server.script(
        Rule(times=1, content="nonsense " * 20, fail="cut"), Rule(content=ROOT, gap=0.01)
    )
    result = RLM(OpenAILM("m", base_url=openai_server.url)).completion("c", "q")
    assert result.answer == 2
    call = next(result.trace.find(kind="lm_call"))
    assert call.response == ROOT
    assert [each.get("error", {}).get("type") for each in call.attempts] == ["disconnected", None]
    assert call.time_to_first_token is not None
    assert 0 < call.time_to_first_token < 0.5


def test_what_had_come_of_a_failed_answer_stays_in_the_trace(openai_server: OpenAIServer) -> None:
    openai_server.script(Rule(content="one two three four " * 5, fail="cut"))
    with pytest.raises(RunError) as caught:
        RLM(OpenAILM("m", base_url=openai_server.url), max_attempts=1).completion("c", "q")
    call = next(caught.value.result.trace.find(kind="lm_call"))
    assert call.state == "error"
    assert (call.response or "").startswith("one two three")


def test_sub_calls_are_not_streamed(openai_server: OpenAIServer) -> None:
    root = answering("llm_query_batched(['a', 'b'])")
    openai_server.script(Rule(match="question", content=root), Rule())
    lm = OpenAILM("m", base_url=openai_server.url)
    assert isinstance(lm, StreamingLM)
    result = RLM(lm).completion("c", "a question")
    assert result.answer == ["answer to: a", "answer to: b"]
    assert [entry.body.get("stream") for entry in openai_server.log()] == [True, None, None]
