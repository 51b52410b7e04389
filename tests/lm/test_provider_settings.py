"""Settings of providers: how they are given, that they are sent, and what of them is recorded."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rlm_notebook import RLM
from rlm_notebook.errors import ModelError, UsageError
from rlm_notebook.lm.lookup import get_lm
from rlm_notebook.lm.openai import OpenAILM
from rlm_notebook.lm.protocol import Message, Request
from rlm_notebook.lm.provider_settings import HIDDEN, ProviderSettings
from rlm_notebook.settings import make_settings, provider_settings, recorded
from tests.fakes import answering
from tests.servers.handle import OpenAIServer
from tests.servers.openai_server import Rule

SECRET = "canary-0123456789abcdef"


async def sent(server: OpenAIServer, settings: ProviderSettings) -> Any:
    lm = OpenAILM("m", base_url=server.url, settings=settings)
    await lm.complete(Request((Message("user", "hello"),)))
    await lm.close()
    return server.log()[0]


async def test_sampling_headers_and_extra_body_are_sent(openai_server: OpenAIServer) -> None:
    settings = ProviderSettings(
        temperature=0.0,
        top_p=0.5,
        seed=7,
        max_output_tokens=99,
        headers={"X-Team": "blue"},
        extra_body={"reasoning_effort": "low", "seed": 8},
    )
    entry = await sent(openai_server, settings)
    assert entry.body == {
        "model": "m",
        "temperature": 0.0,
        "top_p": 0.5,
        "seed": 8,
        "max_tokens": 99,
        "reasoning_effort": "low",
    }
    assert entry.headers["x-team"] == "blue"


async def test_nothing_is_sent_that_was_not_set(openai_server: OpenAIServer) -> None:
    assert (await sent(openai_server, ProviderSettings())).body == {"model": "m"}


async def test_a_header_may_name_a_key(
    openai_server: OpenAIServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GATEWAY", SECRET)
    settings = ProviderSettings(headers={"authorization": "Token $GATEWAY"})
    assert (await sent(openai_server, settings)).headers["authorization"] == f"Token {SECRET}"


@pytest.mark.parametrize(
    ("headers", "says"),
    [
        ({"x-key": "$NOWHERE"}, "header x-key of openai/m: .NOWHERE is not there"),
        ({"x key": "v"}, "'x key' of openai/m is no HTTP header"),
        ({"x-key": "a\nb"}, "'x-key' of openai/m is no HTTP header"),
    ],
)
def test_a_header_that_cannot_be_right_is_named(headers: dict[str, str], says: str) -> None:
    with pytest.raises(ModelError, match=says):
        OpenAILM("m", base_url="http://h/v1", settings=ProviderSettings(headers=headers))


def test_openai_itself_gets_the_newer_name_of_the_output_limit() -> None:
    settings = ProviderSettings(max_output_tokens=5)
    lm = OpenAILM("gpt-5", api_key="k", settings=settings)
    assert lm.body((), stream=False)["max_completion_tokens"] == 5


def test_a_model_overrides_its_provider_and_both_the_general_settings() -> None:
    settings = make_settings(
        temperature=0.1,
        max_output_tokens=10,
        providers={
            "openai": {"temperature": 0.2, "headers": {"a": "b"}},
            "openai/big": {"max_output_tokens": 1_000},
        },
    )
    small = provider_settings(settings, "openai/small")
    big = provider_settings(settings, "openai/big")
    other = provider_settings(settings, "vllm/m")
    assert (small.temperature, small.max_output_tokens) == (0.2, 10)
    assert (big.temperature, big.max_output_tokens, big.headers) == (0.2, 1_000, {"a": "b"})
    assert (other.temperature, other.max_output_tokens) == (0.1, 10)


def test_a_temperature_of_zero_is_not_overridden() -> None:
    settings = make_settings(temperature=0.7, providers={"openai": {"temperature": 0}})
    assert provider_settings(settings, "openai/m").temperature == 0


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ('{"openai": {"temprature": 0}}', "temprature"),
        ('{"openai": {"temperature": "hot"}}', "float"),
        ("openai", "write JSON"),
        ("[1]", "write JSON"),
        ({"openai": {"max_concurrent": 0}}, ">= 1"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(value: Any, says: str) -> None:
    with pytest.raises(UsageError, match=says) as caught:
        make_settings(providers=value)
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith("--providers")


def test_they_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLM_PROVIDERS", '{"openai": {"timeout": 5}}')
    assert make_settings().providers["openai"].timeout == 5


def test_a_provider_of_an_own_name_needs_an_address() -> None:
    with pytest.raises(ModelError, match=r"no provider 'mine'.*setting providers"):
        get_lm("mine/m")
    settings = ProviderSettings(base_url="http://h/v1")
    assert get_lm("mine/m", settings=settings).name == "mine/m"
    settings = ProviderSettings(base_url="http://h", api="anthropic")
    lm = get_lm("mine/m", settings=settings)
    assert getattr(lm, "base_url", None) == "http://h/v1"


def test_root_and_sub_model_may_be_of_different_providers(openai_server: OpenAIServer) -> None:
    openai_server.script(
        Rule(model="root", content=answering("llm_query_batched(['a', 'b'])")), Rule()
    )
    result = RLM(
        "anthropic/root",
        sub_model="mine/leaf",
        providers={
            "anthropic": {"base_url": openai_server.url, "headers": {"x-key": SECRET}},
            "mine": {"base_url": openai_server.url, "temperature": 0.5},
        },
    ).completion("c", "q")
    assert result.answer == ["answer to: a", "answer to: b"]
    root, *leaves = openai_server.log()
    assert root.headers["x-key"] == SECRET
    assert root.headers["anthropic-version"]
    assert [leaf.body["temperature"] for leaf in leaves] == [0.5, 0.5]
    assert result.trace.path is not None
    assert SECRET not in result.trace.path.read_text()


def test_what_is_secret_is_not_recorded() -> None:
    settings = make_settings(
        base_url=f"http://me:{SECRET}@h/v1?key={SECRET}",
        providers={
            "openai": {
                "headers": {"x": SECRET},
                "base_url": f"http://me:{SECRET}@h/v1",
                "extra_body": {"user_token": SECRET, "deep": [{"password": SECRET, "top_k": 3}]},
            }
        },
    )
    found = recorded(settings)
    assert SECRET not in json.dumps(found)
    assert found["base_url"] == "http://h/v1"
    openai = found["providers"]["openai"]
    assert openai["headers"] == {"x": HIDDEN}
    assert openai["extra_body"]["deep"][0]["top_k"] == 3


async def test_secrets_of_headers_are_scrubbed_from_errors(openai_server: OpenAIServer) -> None:
    openai_server.script(Rule(status=400, body=json.dumps({"error": f"bad header {SECRET}"})))
    settings = ProviderSettings(headers={"x-key": SECRET})
    lm = OpenAILM("m", base_url=openai_server.url, settings=settings)
    with pytest.raises(Exception, match="bad header") as caught:
        await lm.complete(Request((Message("user", "hello"),)))
    await lm.close()
    assert SECRET not in str(caught.value)


def test_limits_of_a_provider_hold_for_its_models(openai_server: OpenAIServer) -> None:
    openai_server.script(Rule(delay=0.02))
    providers = {"openai": {"max_concurrent": 2}}
    rlm = RLM(
        "builtin/extractive",
        sub_model="openai/m",
        base_url=openai_server.url,
        providers=providers,
    )
    texts = [f"item {number} " + "x" * 40_000 for number in range(8)]
    result = rlm.completion(texts, "Which item is it?")
    slots = [slot for slot in result.trace.slots if slot.started is not None]
    moments = [(slot.started or 0, 1) for slot in slots] + [(slot.ended or 0, -1) for slot in slots]
    running = most = 0
    for _, step in sorted(moments):
        running += step
        most = max(most, running)
    assert len(slots) > 4
    assert most == 2
