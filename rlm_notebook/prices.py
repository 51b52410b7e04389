"""What a call costs where its provider does not say: by the maintained list of genai-prices."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from functools import cache
from typing import Any
from urllib.parse import urlsplit

import msgspec

from rlm_notebook.lm.protocol import LM, Response, Usage
from rlm_notebook.lm.transport import is_loopback

_list: Any = None
"""The package, once it is loaded."""
_loading = threading.Lock()


def has_price(lm: LM) -> bool:
    """Whether a model may be in the list: it is known by its address, and not on this machine."""
    address = getattr(lm, "base_url", None)
    return isinstance(address, str) and _is_elsewhere(address)


@cache
def _is_elsewhere(address: str) -> bool:
    return not is_loopback(urlsplit(address).hostname or "")


def load() -> None:
    """Load the list: 0.2 s, so not on an event loop."""
    global _list
    with _loading:
        import genai_prices

        _list = genai_prices


def prepare(lm: LM) -> None:
    """Load the list beside the first call that needs it, so that no call has to wait for it."""
    if _list is None and has_price(lm) and not _loading.locked():
        threading.Thread(target=load, name="rlm-prices", daemon=True).start()


async def priced(lm: LM, response: Response) -> Response:
    """The response with its cost, where it can be known."""
    usage = response.usage
    if usage.cost is not None or not usage.complete or not has_price(lm):
        return response
    if _list is None:
        await asyncio.to_thread(load)
    cost = price(str(getattr(lm, "base_url", "")), _models(lm, response), usage)
    if cost is None:
        return response
    return msgspec.structs.replace(
        response, usage=msgspec.structs.replace(usage, cost=cost, estimated=True)
    )


def price(address: str, models: list[str], usage: Usage) -> float | None:
    """USD by the list, under the first name that it knows; None if it knows none."""
    used = _list.Usage(
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        cache_read_tokens=usage.cached_tokens,
    )
    for model in models:
        with contextlib.suppress(LookupError, ValueError):
            found = _list.calc_price(used, model_ref=model, provider_api_url=address)
            return float(found.total_price)
    return None


def _models(lm: LM, response: Response) -> list[str]:
    asked = lm.name.partition("/")[2]
    return [response.model, asked] if response.model else [asked]
