"""Cost where the provider reports none: by the price list, never for a server of one's own."""

from __future__ import annotations

import pytest

from rlm_notebook import RLM, prices
from rlm_notebook.lm.protocol import Response, Usage
from tests.fakes import FakeLM, answering


class At(FakeLM):
    """A model at an address."""

    base_url = "https://api.openai.com/v1"


def lm(response: Response, name: str = "openai/gpt-4o-mini") -> At:
    return At(answering("llm_query('x')"), leaf=lambda _: response, name=name)


def test_tokens_have_a_price_that_is_marked_as_estimated() -> None:
    result = RLM(lm(Response("a", Usage(1_000_000, 0)))).completion("c", "q")
    call = next(result.trace.find(kind="lm_call", purpose="sub"))
    assert call.usage.cost == pytest.approx(0.15)
    assert call.usage.estimated
    assert result.usage.estimated
    assert result.usage.cost is not None
    assert result.usage.cost > 0.15


def test_cached_tokens_are_cheaper() -> None:
    prices.load()
    full = prices.price(At.base_url, ["gpt-4o-mini"], Usage(1_000, 10))
    part = prices.price(At.base_url, ["gpt-4o-mini"], Usage(1_000, 10, cached_tokens=1_000))
    assert full is not None
    assert part is not None
    assert part < full


def test_a_reported_cost_is_kept() -> None:
    result = RLM(lm(Response("a", Usage(1_000, 10, 0.5)))).completion("c", "q")
    call = next(result.trace.find(kind="lm_call", purpose="sub"))
    assert (call.usage.cost, call.usage.estimated) == (0.5, False)


@pytest.mark.parametrize("usage", [Usage(complete=False), Usage(10, None, complete=False)])
async def test_unknown_tokens_have_no_price(usage: Usage) -> None:
    response = Response("a", usage)
    assert await prices.priced(lm(response), response) is response


async def test_unknown_models_and_servers_of_ones_own_have_no_price() -> None:
    response = Response("a", Usage(1_000, 10))
    unknown = lm(response, "openai/nonesuch")
    assert await prices.priced(unknown, response) is response
    for address in ("http://127.0.0.1:8000/v1", "http://models.example/v1"):
        own = lm(response)
        own.base_url = address
        assert await prices.priced(own, response) is response


def test_a_limit_on_cost_counts_estimates() -> None:
    code = "[llm_query(str(i)) for i in range(10)]"
    root = At(answering(code), leaf=lambda _: Response("a", Usage(1_000_000, 0)))
    root.name = "openai/gpt-4o-mini"
    result = RLM(root, max_cost=0.4).completion("c", "q")
    assert result.outcome == "stopped"
    assert "max_cost" in (result.stopped_by or "")
    assert len(root.subs) == 3
