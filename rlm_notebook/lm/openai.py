"""Models behind an OpenAI-compatible server: OpenAI, OpenRouter, vLLM, llama.cpp, Ollama...

One call is one ``POST {base_url}/chat/completions``.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from rlm_notebook.lm.chat import ChatStream, decode_completion
from rlm_notebook.lm.http_model import TIMEOUT, HTTPModel
from rlm_notebook.lm.presets import OPENAI, Preset
from rlm_notebook.lm.protocol import Message, Response
from rlm_notebook.lm.provider_settings import ProviderSettings

if TYPE_CHECKING:
    import httpx


class _Body(msgspec.Struct, omit_defaults=True):
    """What is sent, where no setting adds to it."""

    model: str
    messages: tuple[Message, ...]


class OpenAILM(HTTPModel):
    """A model behind an OpenAI-compatible server.

    ``OpenAILM("gpt-5")``, ``OpenAILM("llama3.2", base_url="http://localhost:11434/v1")``. The
    parameters are those of :class:`~rlm_notebook.lm.http_model.HTTPModel`.
    """

    path = "/chat/completions"

    def __init__(
        self,
        model: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        timeout: float | None = TIMEOUT,
        client: Callable[[], httpx.AsyncClient] | None = None,
        preset: Preset = OPENAI,
        settings: ProviderSettings | None = None,
    ) -> None:
        super().__init__(
            model,
            preset=preset,
            base_url=base_url,
            api_key=api_key,
            timeout=timeout,
            client=client,
            settings=settings,
        )
        self._extra = self._extra_body()

    def key_headers(self, key: str, user: str | None) -> dict[str, str]:
        """``Authorization``."""
        if key:
            return {"authorization": f"Bearer {key}"}
        if user:
            return {"authorization": f"Basic {base64.b64encode(user.encode()).decode()}"}
        return {}

    def body(self, messages: tuple[Message, ...], *, stream: bool) -> Any:
        """Model, messages, and what the settings add."""
        body = _Body(self.model, messages)
        if not self._extra and not stream:
            return body
        more = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
        return {"model": body.model, "messages": messages, **more, **self._extra}

    def decode(self, body: bytes) -> Response:
        """A chat completion."""
        return decode_completion(body)

    def reader(self) -> ChatStream:
        """Of chat completion chunks."""
        return ChatStream()

    def _extra_body(self) -> dict[str, Any]:
        given = self.settings
        # OpenAI's newer models refuse max_tokens; most other servers know only that
        output = (
            "max_completion_tokens" if self._preset is OPENAI and self.at_home else "max_tokens"
        )
        values = {
            "temperature": given.temperature,
            "top_p": given.top_p,
            "seed": given.seed,
            output: given.max_output_tokens,
        }
        found = {name: value for name, value in values.items() if value is not None}
        return {**self._preset.extra_body, **found, **given.extra_body}
