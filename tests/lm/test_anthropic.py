"""The messages API: what is sent, what is read, what its errors mean."""

from __future__ import annotations

from typing import Any

import pytest

from rlm_notebook.errors import LMError, ModelError
from rlm_notebook.lm.anthropic import EMPTY, OUTPUT_TOKENS, AnthropicLM
from rlm_notebook.lm.lookup import get_lm
from rlm_notebook.lm.protocol import LM, Message, Request, Response, StreamingLM, Usage
from rlm_notebook.lm.provider_settings import ProviderSettings
from tests.servers.handle import OpenAIServer
from tests.servers.openai_server import Rule

KEY = "sk-ant-0123456789abcdef"
CONVERSATION = (
    Message("system", "Be brief."),
    Message("user", "hello"),
    Message("assistant", " "),
    Message("user", "again"),
)


async def ask(lm: AnthropicLM, *messages: Message) -> Response:
    try:
        return await lm.complete(Request(messages or CONVERSATION))
    finally:
        await lm.close()


async def failure(lm: AnthropicLM) -> LMError:
    with pytest.raises(LMError) as caught:
        await ask(lm)
    assert "\n" not in str(caught.value)
    assert KEY not in str(caught.value)
    return caught.value


async def test_a_call_is_answered_with_its_usage(openai_server: OpenAIServer) -> None:
    lm = AnthropicLM("claude", base_url=openai_server.url, api_key=KEY)
    assert isinstance(lm, LM)
    assert isinstance(lm, StreamingLM)
    response = await ask(lm)
    assert response == Response("answer to: again", Usage(7, 3), "stop", "claude")
    entry = openai_server.log()[0]
    assert entry.headers["x-api-key"] == KEY
    assert entry.headers["anthropic-version"] == "2023-06-01"
    assert "authorization" not in entry.headers
    assert entry.body == {"model": "claude", "max_tokens": OUTPUT_TOKENS, "system": "Be brief."}


def test_system_messages_stand_apart_and_none_is_empty() -> None:
    body = AnthropicLM("m", api_key=KEY).body(CONVERSATION, stream=True)
    assert body["system"] == "Be brief."
    assert body["stream"] is True
    assert [(m["role"], m["content"]) for m in body["messages"]] == [
        ("user", "hello"),
        ("assistant", EMPTY),
        ("user", "again"),
    ]


async def test_settings_are_sent(openai_server: OpenAIServer) -> None:
    settings = ProviderSettings(
        temperature=0.0,
        top_p=0.9,
        max_output_tokens=100,
        headers={"anthropic-beta": "context-1m"},
        extra_body={"thinking": {"type": "enabled"}},
    )
    await ask(AnthropicLM("m", base_url=openai_server.url, settings=settings))
    entry = openai_server.log()[0]
    assert entry.body["max_tokens"] == 100
    assert (entry.body["temperature"], entry.body["top_p"]) == (0.0, 0.9)
    assert entry.body["thinking"] == {"type": "enabled"}
    assert entry.headers["anthropic-beta"] == "context-1m"


@pytest.mark.parametrize(
    ("given", "used"),
    [
        ("https://api.anthropic.com", "https://api.anthropic.com/v1"),
        ("https://api.anthropic.com/v1/messages", "https://api.anthropic.com/v1"),
        ("http://localhost:1/proxy", "http://localhost:1/proxy"),
    ],
)
def test_the_address_may_leave_v1_out(given: str, used: str) -> None:
    assert AnthropicLM("m", base_url=given, api_key=KEY).base_url == used


def test_the_key_is_named_when_it_is_missing() -> None:
    with pytest.raises(ModelError, match=r"anthropic/claude needs an API key: .*ANTHROPIC_API_KEY"):
        get_lm("anthropic/claude")


@pytest.mark.parametrize(
    ("message", "text", "reason"),
    [
        ({"content": []}, None, "stop"),
        ({"content": [{"type": "tool_use", "name": "f", "input": {}}]}, None, "stop"),
        ({"content": [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "a"},
                      {"type": "text", "text": "b"}]}, "ab", "stop"),
        ({"stop_reason": "max_tokens"}, "answer to: again", "length"),
        ({"stop_reason": "refusal"}, "answer to: again", "refusal"),
    ],
)  # fmt: skip
async def test_every_shape_of_content_is_read(
    openai_server: OpenAIServer, message: dict[str, Any], text: str | None, reason: str
) -> None:
    openai_server.script(Rule(message=message))
    response = await ask(AnthropicLM("m", base_url=openai_server.url))
    assert (response.text, response.finish_reason) == (text, reason)


async def test_cached_tokens_are_input_too(openai_server: OpenAIServer) -> None:
    usage = {
        "input_tokens": 10,
        "cache_creation_input_tokens": 100,
        "cache_read_input_tokens": 1_000,
        "output_tokens": 5,
    }
    openai_server.script(Rule(message={"usage": usage}))
    response = await ask(AnthropicLM("m", base_url=openai_server.url))
    assert response.usage == Usage(1_110, 5, cached_tokens=1_000)


@pytest.mark.parametrize(
    ("status", "body", "kind", "hopeless"),
    [
        (401, '{"type":"error","error":{"type":"authentication_error","message":"invalid x-api-key"}}',
         "http", True),
        (400, '{"error":{"message":"Your credit balance is too low to access the API"}}', "quota", True),
        (400, '{"error":{"message":"prompt is too long: 250000 tokens"}}', "http", False),
        (404, '{"error":{"type":"not_found_error","message":"model: nonesuch"}}', "http", True),
        (529, '{"error":{"type":"overloaded_error","message":"Overloaded"}}', "http", False),
        (200, '{"type":"error","error":{"type":"api_error","message":"oops"}}', "http", False),
        (200, '{"id": 1}', "protocol", False),
        (200, "<html>", "protocol", False),
    ],
)  # fmt: skip
async def test_errors_are_said_in_one_line(
    openai_server: OpenAIServer, status: int, body: str, kind: str, hopeless: bool
) -> None:
    openai_server.script(Rule(status=status, body=body))
    error = await failure(AnthropicLM("m", base_url=openai_server.url, api_key=KEY))
    assert (error.type, error.hopeless) == (kind, hopeless)
    assert "anthropic/m at http://127.0.0.1" in str(error) or "no model 'm'" in str(error)
