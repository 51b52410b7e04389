"""Language models for tests: they say what they are told to."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from rlm_notebook.lm.protocol import Request, Response, Usage

Answer = str | Response | BaseException | None


class FakeLM:
    """A root that gives its replies in order, and a leaf that answers by a function.

    Parameters
    ----------
    replies
        One for each root call; the last one is repeated.
    leaf
        Prompt -> answer of a sub-call, sync or async; an exception is raised.
    seconds
        How long each sub-call takes.
    """

    def __init__(
        self,
        *replies: Answer,
        leaf: Callable[[str], Answer | Awaitable[Answer]] = str.upper,
        seconds: float = 0.0,
        name: str = "fake/lm",
        finish_reason: str | None = "stop",
    ) -> None:
        self.name = name
        self.requests: list[Request] = []
        self.at_work = 0
        self.most_at_work = 0
        self.cancelled = 0
        self._replies = list(replies)
        self._leaf = leaf
        self._seconds = seconds
        self._finish_reason = finish_reason

    @property
    def roots(self) -> list[Request]:
        return [request for request in self.requests if request.purpose != "sub"]

    @property
    def subs(self) -> list[str]:
        return [r.messages[-1].content for r in self.requests if r.purpose == "sub"]

    async def complete(self, request: Request) -> Response:
        self.requests.append(request)
        if request.purpose != "sub":
            index = min(len(self.roots), len(self._replies)) - 1
            return self._response(self._replies[index])
        self.at_work += 1
        self.most_at_work = max(self.most_at_work, self.at_work)
        try:
            await asyncio.sleep(self._seconds)
            answer = self._leaf(request.messages[-1].content)
            if isinstance(answer, Awaitable):
                answer = await answer
            return self._response(answer)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.at_work -= 1

    def _response(self, answer: Answer) -> Response:
        if isinstance(answer, BaseException):
            raise answer
        if isinstance(answer, Response):
            return answer
        return Response(answer, Usage(3, 2), self._finish_reason)

    async def close(self) -> None:
        pass


def block(code: str) -> str:
    """A reply with one code block."""
    return f"```repl\n{code}\n```"


def answering(expression: str) -> str:
    """A reply whose block gives the value of an expression as the answer."""
    return block(f'answer["content"] = {expression}\nanswer["ready"] = True')
