"""What can be set for one provider, or for one of its models."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec

from rlm_notebook.lm.transport import shown

Positive = Annotated[float, msgspec.Meta(gt=0)]
AtLeastOne = Annotated[int, msgspec.Meta(ge=1)]
_SECRET = re.compile(r"key|token|secret|password|auth|credential|cookie", re.IGNORECASE)
HIDDEN = "[not recorded]"


class ProviderSettings(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """Settings of a provider. All are optional.

    ``providers={"openai": {"base_url": "http://localhost:8000/v1", "temperature": 0}}``
    """

    api: Literal["openai", "anthropic"] | None = None
    """Which protocol a provider of your own name speaks: chat completions, or messages."""
    base_url: str | None = None
    """Address of the server, up to and with ``/v1``."""
    key_variable: str | None = None
    """Name under which its key is found in the environment, a ``.env`` file or the keyring."""
    headers: dict[str, str] = {}
    """Sent with each request. ``$NAME`` stands for a key, found as ``key_variable`` is."""
    timeout: Positive | None = None
    """Seconds for one request; the call with its retries has ``call_timeout``."""
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    max_output_tokens: AtLeastOne | None = None
    extra_body: dict[str, Any] = {}
    """Put into the JSON body of each request as it is."""
    stream: bool = True
    """False: the answers of the root are not streamed."""
    max_concurrent: AtLeastOne | None = None
    """Requests in flight; default: ``provider_max_concurrent``."""
    requests_per_minute: Positive | None = None
    tokens_per_minute: Positive | None = None
    """Input and output; what a request will use is estimated, then corrected."""


def settings_for(providers: Mapping[str, ProviderSettings], name: str) -> ProviderSettings:
    """The settings of a model: those of its provider, overridden by its own (``provider/model``)."""
    provider = providers.get(name.partition("/")[0])
    own = providers.get(name)
    if provider is None or own is None:
        return provider or own or ProviderSettings()
    merged = {**msgspec.to_builtins(provider), **msgspec.to_builtins(own)}
    return msgspec.convert(merged, ProviderSettings)


def recordable(settings: ProviderSettings) -> dict[str, Any]:
    """The settings as a trace may hold them: without the values of headers, and what looks secret."""
    found: dict[str, Any] = msgspec.to_builtins(settings)
    if "headers" in found:
        found["headers"] = dict.fromkeys(found["headers"], HIDDEN)
    if "extra_body" in found:
        found["extra_body"] = _without_secrets(found["extra_body"])
    if "base_url" in found:
        found["base_url"] = shown(found["base_url"])
    return found


def read_providers(text: str) -> Any:
    """The settings out of JSON, as the command line and the environment give them.

    Raises
    ------
    ValueError
        It is no JSON object.
    """
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise ValueError('write JSON: {"openai": {"temperature": 0}}')
    return found


def _without_secrets(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            key: HIDDEN
            if _SECRET.search(str(key)) and isinstance(each, str)
            else _without_secrets(each)
            for key, each in value.items()
        }
    if isinstance(value, list):
        return [_without_secrets(each) for each in value]
    return value
