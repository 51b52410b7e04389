"""A handle on the server's process, for tests and benchmarks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import TracebackType
from urllib.request import ProxyHandler, Request, build_opener

import msgspec

from tests.servers.openai_server import Entry, Rule

ROOT = Path(__file__).parents[2]


class OpenAIServer:
    """A running server. Use it as a context manager, or through the fixture ``openai_server``."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.servers.openai_server"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())
        self.host = f"http://127.0.0.1:{self.port}"
        self.url = f"{self.host}/v1"
        """The ``base_url``."""
        self._opener = build_opener(ProxyHandler({}))

    def script(self, *rules: Rule) -> None:
        """Set the rules; empties the log."""
        request = Request(f"{self.host}/script", msgspec.json.encode(rules))
        with self._opener.open(request, timeout=10) as answer:
            answer.read()

    def log(self) -> list[Entry]:
        """The requests received since the script was set."""
        with self._opener.open(f"{self.host}/log", timeout=10) as answer:
            return msgspec.json.decode(answer.read(), type=list[Entry])

    def close(self) -> None:
        """End the server's process."""
        self._process.communicate(timeout=10)

    def __enter__(self) -> OpenAIServer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
