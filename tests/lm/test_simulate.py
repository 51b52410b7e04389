"""Latency and failures from a seed."""

from __future__ import annotations

import asyncio
import statistics

import pytest

from rlm_notebook.errors import LMError, UsageError
from rlm_notebook.lm.protocol import Message, Request
from rlm_notebook.lm.simulate import SimulatedLM, Simulation, draw
from tests.fakes import FakeLM


def request(text: str, purpose: str = "sub", occurrence: int = 0) -> Request:
    return Request((Message("user", text),), purpose, occurrence)  # type: ignore[arg-type]


def test_a_specification_is_read_whole() -> None:
    simulation = Simulation.parse("latency=lognormal(0.8, 0.6) errors=0.05 seed=7")
    assert simulation == Simulation("lognormal", (0.8, 0.6), 0.05, 7)
    assert Simulation.parse("latency=bimodal(0.2,5,0.1)").parameters == (0.2, 5.0, 0.1)
    assert Simulation.parse("") == Simulation()


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("latency=gauss(1,2)", "latency is constant(S), lognormal"),
        ("latency=lognormal(1)", "lognormal takes 2 numbers: median seconds, sigma"),
        ("latency=constant(x)", "'x' is not a number of 0 or more"),
        ("latency=constant(-1)", "'-1' is not a number of 0 or more"),
        ("latency=bimodal(1,2,3)", "'3' is not a number between 0 and 1"),
        ("errors=2", "errors '2' is not a number between 0 and 1"),
        ("seed=1.5", "not a whole number"),
        ("speed=3", "'speed=3' is not known"),
        ("seed=1 errors=0.1 seed=2", "seed is given twice"),
        ("latency=constant(1", "is not known"),
    ],
)
def test_a_wrong_specification_gives_one_line_that_says_what_is_right(text: str, part: str) -> None:
    with pytest.raises(UsageError) as caught:
        Simulation.parse(text)
    assert part in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_draw_depends_on_seed_and_request_only() -> None:
    simulation = Simulation.parse("latency=lognormal(1,1) errors=0.5 seed=3")
    requests = [request(f"p{i}") for i in range(50)] + [request("p0", occurrence=1)]
    first = [(s, str(e)) for s, e in (draw(simulation, r) for r in requests)]
    again = [(s, str(e)) for s, e in (draw(simulation, r) for r in reversed(requests))]
    assert first == again[::-1]
    assert first[0] != first[-1]
    other = Simulation.parse("latency=lognormal(1,1) errors=0.5 seed=4")
    assert [draw(other, r)[0] for r in requests] != [seconds for seconds, _ in first]


def test_the_distributions_are_what_they_say() -> None:
    def seconds(text: str) -> list[float]:
        return [draw(Simulation.parse(text), request(str(i)))[0] for i in range(4_000)]

    assert set(seconds("latency=constant(0.5)")) == {0.5}
    assert statistics.median(seconds("latency=lognormal(0.8,0.6)")) == pytest.approx(0.8, rel=0.05)
    slow = seconds("latency=bimodal(0.2,5,0.1)")
    assert set(slow) == {0.2, 5.0}
    assert slow.count(5.0) / len(slow) == pytest.approx(0.1, abs=0.02)


def test_failures_come_at_the_stated_rate_and_never_hit_the_root() -> None:
    simulation = Simulation.parse("errors=0.2 seed=1")
    failures = [draw(simulation, request(str(i)))[1] for i in range(2_000)]
    failed = [failure for failure in failures if failure is not None]
    assert len(failed) / 2_000 == pytest.approx(0.2, abs=0.03)
    assert {failure.type for failure in failed} == {"simulated"}
    assert {failure.status for failure in failed} == {429, 500, 503}
    always = Simulation.parse("errors=1")
    assert draw(always, request("x", "root"))[1] is None
    assert draw(always, request("x", "final"))[1] is None


async def test_the_model_waits_and_fails_as_drawn() -> None:
    inner = FakeLM()
    good = SimulatedLM(inner, Simulation.parse("latency=constant(0.05)"))
    begin = asyncio.get_running_loop().time()
    assert (await good.complete(request("hello"))).text == "HELLO"
    assert asyncio.get_running_loop().time() - begin >= 0.05
    bad = SimulatedLM(inner, Simulation.parse("errors=1"))
    with pytest.raises(LMError, match="simulated"):
        await bad.complete(request("hello"))
    assert good.name == inner.name


async def test_waiting_can_be_cancelled() -> None:
    slow = SimulatedLM(FakeLM(), Simulation.parse("latency=constant(60)"))
    task = asyncio.create_task(slow.complete(request("x")))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
