"""From ``provider/model`` to a language model."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from rlm_notebook.errors import ModelError, RLMError, UsageError
from rlm_notebook.lm.presets import PRESETS, Preset, named
from rlm_notebook.lm.protocol import LM
from rlm_notebook.lm.provider_settings import ProviderSettings

GROUP = "rlm_notebook.providers"
"""Entry points of this group add providers. Each is a callable ``factory(model, *, base_url,
timeout, settings)`` that returns an :class:`~rlm_notebook.lm.protocol.LM`; ``base_url`` and
``timeout`` may be None (your default), ``settings`` is a
:class:`~rlm_notebook.lm.provider_settings.ProviderSettings`."""
BUILTIN_MODELS = ("extractive",)


def get_lm(
    name: str,
    *,
    base_url: str | None = None,
    simulate: str | None = None,
    timeout: float | None = None,
    settings: ProviderSettings | None = None,
) -> LM:
    """The language model of that name.

    Parameters
    ----------
    name
        ``provider/model``, for instance ``openai/gpt-5`` or ``builtin/extractive``.
    base_url
        Address of the server, for providers that run at many (openai, ollama, vllm).
    simulate
        Latency and failures of the builtin model, for instance ``"latency=constant(0.5)"``.
    timeout
        Seconds for one request; None: the provider's default.
    settings
        Settings of the provider. With a ``base_url`` or an ``api``, the provider's name may be one
        of your own.

    Raises
    ------
    ModelError
        No such provider, or the provider lacks a setting (such as its key).
    UsageError
        ``simulate`` with a real model, or a ``simulate`` that cannot be read.
    """
    settings = settings or ProviderSettings()
    provider, slash, model = (part.strip() for part in name.strip().partition("/"))
    if not slash or not provider or not model:
        raise ModelError(_no_slash(name.strip()))
    if simulate is not None and provider != "builtin":
        raise UsageError(
            f"simulate works with builtin/extractive, not with {name}: leave out one of the two"
        )
    if provider == "builtin":
        return _builtin(model, simulate)
    if provider in PRESETS:
        return _http(PRESETS[provider], model, base_url, timeout, settings)
    if provider == "litellm":
        from rlm_notebook.lm.litellm import LiteLLM

        return LiteLLM(model, timeout=timeout, settings=settings)
    for entry in entry_points(group=GROUP):
        if entry.name == provider:
            more = {"base_url": base_url, "timeout": timeout, "settings": settings}
            return _third_party(entry, model, **more)
    if settings.base_url:
        preset = named(provider, settings.api or "openai", settings.base_url)
        return _http(preset, model, None, timeout, settings)
    raise ModelError(_unknown(provider, name.strip()))


def providers() -> list[str]:
    """The names that may stand before the slash."""
    return sorted(
        {"builtin", "litellm", *PRESETS, *(entry.name for entry in entry_points(group=GROUP))}
    )


def _builtin(model: str, simulate: str | None) -> LM:
    if model not in BUILTIN_MODELS:
        raise ModelError(f"no model builtin/{model}; there is: builtin/extractive")
    from rlm_notebook.lm.extractive import ExtractiveLM

    lm = ExtractiveLM()
    if simulate is None:
        return lm
    from rlm_notebook.lm.simulate import SimulatedLM, Simulation

    return SimulatedLM(lm, Simulation.parse(simulate))


def _http(
    preset: Preset,
    model: str,
    base_url: str | None,
    timeout: float | None,
    settings: ProviderSettings,
) -> LM:
    from rlm_notebook.lm.anthropic import AnthropicLM
    from rlm_notebook.lm.http_model import TIMEOUT
    from rlm_notebook.lm.openai import OpenAILM

    kind = AnthropicLM if (settings.api or preset.api) == "anthropic" else OpenAILM
    return kind(
        model,
        # a run has one base_url: it must not send one provider's key to another one's address
        base_url=base_url if preset.movable and not settings.base_url else None,
        timeout=TIMEOUT if timeout is None else timeout,
        preset=preset,
        settings=settings,
    )


def _third_party(entry: EntryPoint, model: str, **settings: Any) -> LM:
    name = f"{entry.name}/{model}"
    try:
        factory: Callable[..., Any] = entry.load()
        lm = factory(model, **settings)
    except RLMError:
        raise
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise ModelError(f"the provider of {name} ({entry.value}) failed: {reason}") from error
    if not isinstance(lm, LM):
        raise ModelError(
            f"the provider of {name} ({entry.value}) returned a {type(lm).__name__}, which lacks "
            "name, complete or close: see rlm_notebook.lm.protocol.LM"
        )
    return lm


def _no_slash(name: str) -> str:
    bare = name.strip("/")
    if not bare:
        return "the model name is empty: write provider/model, for instance builtin/extractive"
    if bare in BUILTIN_MODELS or bare == "builtin":
        return f"{name!r} names no provider: write builtin/extractive"
    if bare in providers():
        return f"{name!r} names no model: write {bare}/MODEL"
    return f"{name!r} names no provider: write openai/{bare}"


def _unknown(provider: str, name: str) -> str:
    known = providers()
    close = difflib.get_close_matches(provider.lower(), known, n=1, cutoff=0.75)
    if close:
        mend = f"did you mean {close[0]}/{name.partition('/')[2].strip()}?"
    else:
        mend = (
            f"a model on an OpenAI-compatible server is openai/{name} with its base_url, or give "
            f"{provider} a base_url in the setting providers"
        )
    return f"no provider {provider!r}; known: {', '.join(known)}. {mend[0].upper()}{mend[1:]}"
