"""Latency and failures from a seed: what teaching and tests need of a slow, unreliable model.

Every draw depends only on the seed and the request, never on the order or the concurrency of
calls, so a run can be repeated.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
from dataclasses import dataclass

from rlm_notebook.errors import LMError, UsageError
from rlm_notebook.lm.protocol import LM, Request, Response

DISTRIBUTIONS = {
    "constant": ("seconds",),
    "lognormal": ("median seconds", "sigma"),
    "bimodal": ("fast seconds", "slow seconds", "share of slow"),
}
RIGHT = (
    "write for instance 'latency=lognormal(0.8,0.6) errors=0.05 seed=7'; latency is "
    "constant(S), lognormal(MEDIAN_S,SIGMA) or bimodal(FAST_S,SLOW_S,SHARE_OF_SLOW)"
)
_FAILURES = (
    (500, "the server had an internal error (simulated)"),
    (503, "the server is overloaded (simulated)"),
    (429, "too many requests (simulated)"),
)


@dataclass(frozen=True)
class Simulation:
    """How slow and how unreliable.

    ``Simulation.parse("latency=lognormal(0.8,0.6) errors=0.05 seed=7")``
    """

    distribution: str = "constant"
    """``constant(S)``; ``lognormal(MEDIAN_S, SIGMA)``: exp(normal(ln MEDIAN_S, SIGMA));
    ``bimodal(FAST_S, SLOW_S, SHARE)``: SLOW_S with probability SHARE, else FAST_S."""
    parameters: tuple[float, ...] = (0.0,)
    errors: float = 0.0
    """Probability that a sub-call fails. The root never fails."""
    seed: int = 0

    @classmethod
    def parse(cls, text: str) -> Simulation:
        """Read ``latency=... errors=... seed=...``; each part may be left out.

        Raises
        ------
        UsageError
            It cannot be read; the message says what is right.
        """
        found: dict[str, str] = {}
        for word in text.replace(", ", ",").split():
            key, equals, value = word.partition("=")
            if not equals or key not in ("latency", "errors", "seed"):
                raise UsageError(f"simulate: {word!r} is not known; {RIGHT}")
            if key in found:
                raise UsageError(f"simulate: {key} is given twice; {RIGHT}")
            found[key] = value
        distribution, parameters = _latency(found.get("latency", "constant(0)"))
        return cls(
            distribution,
            parameters,
            _number(found.get("errors", "0"), "errors", highest=1),
            int(_number(found.get("seed", "0"), "seed", whole=True)),
        )


class SimulatedLM:
    """A model that waits, and sometimes fails, before it answers.

    Every call waits, the root's too; only sub-calls fail.
    """

    def __init__(self, inner: LM, simulation: Simulation) -> None:
        self._inner = inner
        self.simulation = simulation

    @property
    def name(self) -> str:
        """The name of the model behind it."""
        return self._inner.name

    async def complete(self, request: Request) -> Response:
        """Wait, then answer or fail. The answer is worked out first and counts as waiting time.

        Raises
        ------
        LMError
            A simulated failure.
        """
        seconds, failure = draw(self.simulation, request)
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        response = await self._inner.complete(request) if failure is None else None
        await asyncio.sleep(max(0.0, end - loop.time()))
        if response is None:
            assert failure is not None
            raise failure
        return response

    async def close(self) -> None:
        """Close the model behind it."""
        await self._inner.close()


def draw(simulation: Simulation, request: Request) -> tuple[float, LMError | None]:
    """Latency in seconds, and the failure if the call fails."""
    digest = hashlib.blake2b(digest_size=8)
    digest.update(f"{simulation.seed}|{request.purpose}|{request.occurrence}".encode())
    for message in request.messages:
        digest.update(message.content.encode("utf-8", "surrogatepass"))
    dice = random.Random(int.from_bytes(digest.digest(), "big"))
    seconds = _seconds(simulation, dice)
    if request.purpose != "sub" or dice.random() >= simulation.errors:
        return seconds, None
    status, reason = dice.choice(_FAILURES)
    return seconds, LMError(reason, type="simulated", status=status)


def _seconds(simulation: Simulation, dice: random.Random) -> float:
    parameters = simulation.parameters
    if simulation.distribution == "lognormal":
        return parameters[0] * dice.lognormvariate(0.0, parameters[1])
    if simulation.distribution == "bimodal":
        return parameters[1] if dice.random() < parameters[2] else parameters[0]
    return parameters[0]


def _latency(text: str) -> tuple[str, tuple[float, ...]]:
    name, bracket, rest = text.partition("(")
    if name not in DISTRIBUTIONS or not bracket or not rest.endswith(")"):
        raise UsageError(f"simulate: latency {text!r} is not known; {RIGHT}")
    values = rest[:-1].split(",") if rest[:-1] else []
    names = DISTRIBUTIONS[name]
    if len(values) != len(names):
        raise UsageError(f"simulate: {name} takes {len(names)} numbers: {', '.join(names)}")
    return name, tuple(
        _number(value, f"{name}: {what}", highest=1 if "share" in what else None)
        for value, what in zip(values, names, strict=True)
    )


def _number(text: str, what: str, *, highest: float | None = None, whole: bool = False) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf") or (highest is not None and value > highest):
        between = f"between 0 and {highest:g}" if highest is not None else "of 0 or more"
        raise UsageError(f"simulate: {what} {text!r} is not a number {between}")
    if whole and value != int(value):
        raise UsageError(f"simulate: {what} {text!r} is not a whole number")
    return value
