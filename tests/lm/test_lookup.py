from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import EntryPoint
from typing import Any

import pytest

from rlm_notebook.errors import ModelError, UsageError
from rlm_notebook.lm import lookup
from rlm_notebook.lm.lookup import get_lm
from rlm_notebook.lm.openai import TIMEOUT, OpenAILM
from rlm_notebook.lm.protocol import LM, Message, Request, Response
from rlm_notebook.lm.provider_settings import ProviderSettings

LOCAL = "http://localhost:9/v1"


class OwnLM:
    """What a provider of somebody else returns."""

    def __init__(
        self,
        model: str,
        *,
        base_url: str | None,
        timeout: float | None,
        settings: ProviderSettings,
    ) -> None:
        self.name = f"own/{model}"
        self.given = (base_url, timeout, settings.temperature)

    async def complete(self, request: Request) -> Response:
        return Response("own")

    async def close(self) -> None:
        pass


def broken(model: str, **settings: Any) -> LM:
    raise RuntimeError("no licence\nfile")


def without_key(model: str, **settings: Any) -> LM:
    raise ModelError("set OWN_KEY")


def no_lm(model: str, **settings: Any) -> object:
    return "a str"


Install = Callable[[str, str], None]


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Install:
    """Adds a provider as an installed package would."""
    entries: list[EntryPoint] = []

    def found(*, group: str) -> list[EntryPoint]:
        return [entry for entry in entries if entry.group == group]

    monkeypatch.setattr(lookup, "entry_points", found)

    def add(name: str, attribute: str) -> None:
        entries.append(EntryPoint(name, f"{__name__}:{attribute}", lookup.GROUP))

    return add


def test_openai_models_are_found_with_address_and_timeout() -> None:
    lm = get_lm("openai/meta-llama/Llama-3", base_url=LOCAL, timeout=5.0)
    assert isinstance(lm, OpenAILM)
    assert (lm.model, lm.base_url, lm.timeout) == ("meta-llama/Llama-3", LOCAL, 5.0)
    default = get_lm(" openai/m ", base_url=LOCAL)
    assert isinstance(default, OpenAILM)
    assert (default.name, default.timeout) == ("openai/m", TIMEOUT)


def test_openai_without_a_key_names_the_variable() -> None:
    with pytest.raises(ModelError, match="OPENAI_API_KEY"):
        get_lm("openai/gpt-5")


async def test_the_builtin_model_needs_nothing() -> None:
    lm = get_lm("builtin/extractive")
    assert lm.name == "builtin/extractive"
    response = await lm.complete(Request((Message("user", "hello"),)))
    assert isinstance(response, Response)
    await lm.close()


async def test_simulate_wraps_the_builtin_model() -> None:
    from rlm_notebook.lm.simulate import SimulatedLM

    lm = get_lm("builtin/extractive", simulate="latency=constant(0.001) errors=0 seed=1")
    assert isinstance(lm, SimulatedLM)
    await lm.close()


def test_simulate_with_a_real_model_is_refused_in_one_line() -> None:
    with pytest.raises(UsageError, match=r"^simulate works with builtin/extractive, not with"):
        get_lm("openai/m", base_url=LOCAL, simulate="latency=constant(1)")


@pytest.mark.parametrize(
    ("name", "mend"),
    [
        ("gpt-5", "write openai/gpt-5"),
        ("extractive", "write builtin/extractive"),
        ("builtin", "write builtin/extractive"),
        ("openai", "write openai/MODEL"),
        ("openai/", "write openai/MODEL"),
        ("/gpt-5", "write openai/gpt-5"),
        ("", "write provider/model"),
        (" / ", "write provider/model"),
        ("opnai/gpt-5", "Did you mean openai/gpt-5?"),
        ("OpenAI/gpt-5", "Did you mean openai/gpt-5?"),
        ("meta-llama/Llama-3", "openai/meta-llama/Llama-3 with its base_url"),
        ("builtin/extractiv", "there is: builtin/extractive"),
    ],
)
def test_a_wrong_name_is_answered_with_the_right_one(name: str, mend: str) -> None:
    with pytest.raises(ModelError) as caught:
        get_lm(name)
    assert mend in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_unknown_provider_lists_the_known_ones(install: Install) -> None:
    install("own", "OwnLM")
    with pytest.raises(
        ModelError,
        match="known: anthropic, builtin, gemini, litellm, ollama, openai, openrouter, own, vllm",
    ):
        get_lm("anthropc/claude")


def test_an_installed_provider_gets_model_and_settings(install: Install) -> None:
    install("own", "OwnLM")
    settings = ProviderSettings(temperature=0.5)
    lm = get_lm("own/a/b", base_url=LOCAL, timeout=3.0, settings=settings)
    assert isinstance(lm, OwnLM)
    assert (lm.name, lm.given) == ("own/a/b", (LOCAL, 3.0, 0.5))


@pytest.mark.parametrize(
    ("factory", "says"),
    [
        ("broken", "RuntimeError: no licence file"),
        ("missing", "AttributeError"),
        ("no_lm", "returned a str"),
        ("without_key", "^set OWN_KEY$"),
    ],
)
def test_a_provider_that_fails_is_named_with_its_reason(
    install: Install, factory: str, says: str
) -> None:
    install("own", factory)
    with pytest.raises(ModelError, match=says) as caught:
        get_lm("own/x")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "variable", "address"),
    [
        ("openrouter/meta/llama-4", "OPENROUTER_API_KEY", "https://openrouter.ai/api/v1"),
        (
            "gemini/gemini-3-flash",
            "GEMINI_API_KEY",
            "https://generativelanguage.googleapis.com/v1beta/openai",
        ),
    ],
)
def test_a_hosted_preset_needs_its_own_key_and_stays_at_its_own_address(
    monkeypatch: pytest.MonkeyPatch, name: str, variable: str, address: str
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-somebody-else")
    with pytest.raises(ModelError, match=variable):
        get_lm(name)
    monkeypatch.setenv(variable, "key")
    lm = get_lm(name, base_url="http://127.0.0.1:9/v1")
    assert lm.name == name
    assert getattr(lm, "base_url", None) == address


@pytest.mark.parametrize(
    ("name", "address"),
    [("ollama/llama3.2", "http://localhost:11434/v1"), ("vllm/m", "http://localhost:8000/v1")],
)
def test_a_local_preset_needs_no_key_and_can_be_moved(
    monkeypatch: pytest.MonkeyPatch, name: str, address: str
) -> None:
    assert getattr(get_lm(name), "base_url", None) == address
    moved = get_lm(name, base_url="http://127.0.0.1:9/v1")
    assert getattr(moved, "base_url", None) == "http://127.0.0.1:9/v1"
    monkeypatch.setenv(f"{name.partition('/')[0].upper()}_BASE_URL", "http://127.0.0.1:8/v1")
    assert getattr(get_lm(name), "base_url", None) == "http://127.0.0.1:8/v1"
