"""``litellm/...`` against a local server."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

import pytest

from rlm_notebook import RLM
from rlm_notebook.errors import LMError, ModelError
from rlm_notebook.lm.litellm import LiteLLM
from rlm_notebook.lm.lookup import get_lm
from rlm_notebook.lm.protocol import Message, Request, StreamingLM
from rlm_notebook.lm.provider_settings import ProviderSettings
from tests.fakes import answering
from tests.servers.handle import OpenAIServer
from tests.servers.openai_server import Rule

pytestmark = pytest.mark.filterwarnings("ignore")  # of other packages' making

KEY = "sk-0123456789abcdef"
REQUEST = Request((Message("user", "hello"),), "root")


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    return iter(())


def model(server: OpenAIServer, **settings: object) -> LiteLLM:
    given = ProviderSettings(base_url=server.url, **settings)  # type: ignore[arg-type]
    return LiteLLM("openai/m", settings=given)


async def test_a_call_is_answered(openai_server: OpenAIServer) -> None:
    lm = model(openai_server, temperature=0.5, headers={"x-team": "blue"})
    assert isinstance(lm, StreamingLM)
    response = await lm.complete(REQUEST)
    await lm.close()
    assert (response.text, response.finish_reason) == ("answer to: hello", "stop")
    assert (response.usage.input_tokens, response.usage.output_tokens) == (7, 3)
    entry = openai_server.log()[0]
    assert entry.body["temperature"] == 0.5
    assert entry.headers["x-team"] == "blue"


async def test_a_call_is_streamed(openai_server: OpenAIServer) -> None:
    pieces: list[str] = []
    lm = model(openai_server)
    response = await lm.stream(REQUEST, pieces.append)
    await lm.close()
    assert "".join(pieces) == response.text == "answer to: hello"
    assert response.usage.output_tokens == 3


@pytest.mark.parametrize(
    ("status", "kind", "transient"),
    [(500, "http", True), (401, "http", False), (429, "http", True)],
)
async def test_a_failure_is_one_request_and_one_line(
    openai_server: OpenAIServer, status: int, kind: str, transient: bool
) -> None:
    openai_server.script(Rule(status=status, body='{"error": {"message": "no\\nway"}}'))
    lm = model(openai_server)
    with pytest.raises(LMError, match="litellm/openai/m: ") as caught:
        await lm.complete(REQUEST)
    await lm.close()
    error = caught.value
    assert (error.type, error.status, error.transient) == (kind, status, transient)
    assert "\n" not in str(error)
    assert KEY not in str(error)
    assert len(openai_server.log()) == 1


def test_a_run_with_it_as_root(openai_server: OpenAIServer) -> None:
    openai_server.script(Rule(content=answering("1 + 1")))
    providers = {"litellm": {"base_url": openai_server.url}}
    assert RLM("litellm/openai/m", providers=providers).completion("c", "q").answer == 2


def test_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModelError, match=r"pip install 'rlm-notebook\[litellm\]'"):
        get_lm("litellm/openai/m")
