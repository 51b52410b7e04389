"""``litellm/...``: every provider that LiteLLM knows. Needs the extra ``[litellm]``.

LiteLLM's own retries are off: calls are retried in one place.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import sys
from typing import Any

from rlm_notebook.errors import LMError, ModelError
from rlm_notebook.lm.chat import one_line
from rlm_notebook.lm.protocol import OnText, Request, Response, Usage
from rlm_notebook.lm.provider_settings import ProviderSettings
from rlm_notebook.trace.jsonl import clean


class LiteLLM:
    """A model by its name in LiteLLM: ``LiteLLM("bedrock/anthropic.claude-3-haiku")``.

    Parameters
    ----------
    timeout
        Seconds for one request; None: LiteLLM's default.
    settings
        Address, headers, sampling and the like.

    Raises
    ------
    ModelError
        The package litellm is not installed.
    """

    def __init__(
        self,
        model: str,
        *,
        timeout: float | None = None,
        settings: ProviderSettings | None = None,
    ) -> None:
        if importlib.util.find_spec("litellm") is None:
            raise ModelError(
                f"litellm/{model} needs the package litellm: pip install 'rlm-notebook[litellm]'"
            )
        self.settings = settings = settings or ProviderSettings()
        self.model = model
        self.base_url = settings.base_url
        self.timeout = settings.timeout or timeout
        from rlm_notebook.lm.keys import expanded, find_key

        headers = {name: expanded(value) or "" for name, value in settings.headers.items()}
        self._secrets = [value for value in headers.values() if len(value) >= 12]
        values = {
            "base_url": self.base_url,
            "timeout": self.timeout,
            "temperature": settings.temperature,
            "top_p": settings.top_p,
            "seed": settings.seed,
            "max_tokens": settings.max_output_tokens,
            "extra_headers": headers or None,
            "extra_body": settings.extra_body or None,
        }
        if settings.key_variable:
            values["api_key"] = find_key(settings.key_variable)
            self._secrets.append(str(values["api_key"]))
        self._options = {name: value for name, value in values.items() if value is not None}

    @property
    def name(self) -> str:
        """``litellm/<model>``."""
        return f"litellm/{self.model}"

    def __repr__(self) -> str:
        return f"LiteLLM({self.model!r})"

    async def complete(self, request: Request) -> Response:
        """Answer one request.

        Raises
        ------
        LMError
            What LiteLLM raises, in one line.
        """
        answer = await self._ask(request)
        choice = answer.choices[0]
        text = choice.message.content
        return self._response(text, choice.finish_reason, answer)

    async def stream(self, request: Request, on_text: OnText) -> Response:
        """Answer one request, and hand over its text as it comes."""
        if not self.settings.stream:
            return await self.complete(request)
        chunks = await self._ask(request, stream=True, stream_options={"include_usage": True})
        texts: list[str] = []
        reason, last = None, None
        try:
            async for chunk in chunks:
                last = chunk if last is None or getattr(chunk, "usage", None) else last
                if not chunk.choices:
                    continue
                reason = chunk.choices[0].finish_reason or reason
                text = chunk.choices[0].delta.content
                if text:
                    texts.append(text)
                    on_text(clean(text))
        except Exception as error:
            failure = self._failure(error)
        else:
            return self._response("".join(texts) if texts else None, reason, last)
        raise failure

    async def close(self) -> None:
        """Close LiteLLM's own HTTP clients, if it has been used."""
        litellm: Any = sys.modules.get("litellm")
        if litellm is not None:
            await litellm.close_litellm_async_clients()

    async def _ask(self, request: Request, **more: Any) -> Any:
        litellm: Any = sys.modules.get("litellm") or await asyncio.to_thread(_load)
        messages = [{"role": m.role, "content": clean(m.content)} for m in request.messages]
        try:
            return await litellm.acompletion(
                model=self.model,
                messages=messages,
                num_retries=0,
                max_retries=0,
                **self._options,
                **more,
            )
        except Exception as error:
            failure = self._failure(error)
        raise failure

    def _failure(self, error: Exception) -> LMError:
        name = type(error).__name__
        status = getattr(error, "status_code", None)
        message = str(error)
        for secret in self._secrets:
            message = message.replace(secret, "[key]")
        kinds = {"Timeout": "timeout", "APIConnectionError": "connect"}
        spent = "insufficient_quota" in message
        return LMError(
            f"{self.name}: {one_line(message) or name}",
            type="quota" if spent else kinds.get(name, "http" if isinstance(status, int) else name),
            status=status if isinstance(status, int) else None,
        )

    def _response(self, text: str | None, reason: str | None, answer: Any) -> Response:
        usage = getattr(answer, "usage", None)
        tokens_in = getattr(usage, "prompt_tokens", None)
        tokens_out = getattr(usage, "completion_tokens", None)
        cost = getattr(answer, "_hidden_params", {}).get("response_cost")
        known = tokens_in is not None and tokens_out is not None
        return Response(
            None if text is None else clean(text),
            Usage(tokens_in, tokens_out, cost, known, estimated=cost is not None),
            reason,
            getattr(answer, "model", None),
        )


def _load() -> Any:
    """Import it: some seconds, so not on an event loop."""
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # else it asks the network
    import litellm

    litellm.suppress_debug_info = True
    litellm.telemetry = False
    return litellm
