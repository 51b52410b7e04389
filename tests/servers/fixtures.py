"""The fixtures ``openai_server`` and ``openai_process``."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.servers.handle import OpenAIServer


@pytest.fixture(scope="session")
def openai_process() -> Iterator[OpenAIServer]:
    """One server for the whole session; its script is not reset between tests."""
    with OpenAIServer() as server:
        yield server


@pytest.fixture
def openai_server(openai_process: OpenAIServer) -> OpenAIServer:
    """An OpenAI-compatible server on loopback, without a script and with an empty log."""
    openai_process.script()
    return openai_process
