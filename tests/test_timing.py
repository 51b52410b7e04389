"""The recorded times are the true ones: compared with the log of the server that answered.

Both clocks are ``time.monotonic_ns``, which on Linux is one clock for all processes.
"""

from __future__ import annotations

import random
import statistics
import sys
import time

import pytest

from rlm_notebook import RLM
from rlm_notebook.lm.openai import OpenAILM
from rlm_notebook.lm.protocol import Request, Response
from rlm_notebook.trace.recorder import Recorder
from tests.fakes import FakeLM, answering
from tests.servers.handle import OpenAIServer
from tests.servers.openai_server import Rule

SLOTS = 500
MS = 1e6


class Watched(OpenAILM):
    """Notes when a call enters and leaves the client: what is between is client and transport."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        self.times: dict[str, tuple[int, int]] = {}

    async def complete(self, request: Request) -> Response:
        begin = time.monotonic_ns()
        try:
            return await super().complete(request)
        finally:
            self.times[request.messages[-1].content] = (begin, time.monotonic_ns())


@pytest.mark.skipif(sys.platform != "linux", reason="needs one monotonic clock for all processes")
def test_recorded_latency_is_that_of_the_servers_log(
    openai_server: OpenAIServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    delays = [random.Random(11).lognormvariate(-4.0, 0.8) for _ in range(SLOTS)]  # median 18 ms
    openai_server.script(Rule(delays=delays))
    recorders: list[Recorder] = []
    create = Recorder.__init__

    def remember(self: Recorder, **kwargs: object) -> None:
        create(self, **kwargs)  # type: ignore[arg-type]
        recorders.append(self)

    monkeypatch.setattr(Recorder, "__init__", remember)
    leaf = Watched("m", base_url=openai_server.url)
    root = FakeLM(answering(f"len(llm_query_batched(['#%d' % i for i in range({SLOTS})]))"))
    result = RLM(root, sub_model=leaf, batch_max_concurrent=16).completion("c", "q")
    assert result.answer == SLOTS
    server = {entry.prompt: entry for entry in openai_server.log()}
    zero = recorders[0]._zero
    assert zero is not None
    beyond_client: list[float] = []
    beyond_server: list[float] = []
    transport: list[float] = []
    for slot in result.trace.slots:
        entry = server[slot.attrs["prompt"]]
        begin, end = leaf.times[slot.attrs["prompt"]]
        assert slot.started is not None
        assert slot.ended is not None
        assert entry.answered is not None
        # Never shorter than what the server saw, on either side:
        assert zero + slot.started <= begin <= entry.received
        assert entry.answered <= end <= zero + slot.ended
        seen = entry.answered - entry.received
        beyond_client.append((slot.ended - slot.started - (end - begin)) / MS)
        beyond_server.append((slot.ended - slot.started - seen) / MS)
        transport.append((end - begin - seen) / MS)
    print(
        f"recorded - server: median {statistics.median(beyond_server):.2f} ms, "
        f"worst {max(beyond_server):.2f} ms; of it transport: "
        f"median {statistics.median(transport):.2f} ms, worst {max(transport):.2f} ms"
    )
    assert statistics.median(beyond_server) <= 2 + statistics.median(transport)
    assert statistics.median(beyond_client) <= 2
    # A busy machine may halt the loop for a moment, which all slots of that moment share.
    assert statistics.quantiles(beyond_client, n=10)[7] <= 20


def test_queue_waits_and_latencies_add_up_to_the_batch(openai_server: OpenAIServer) -> None:
    openai_server.script(Rule(delay=0.05))
    root = FakeLM(answering("len(llm_query_batched(['p'] * 12))"))
    leaf = OpenAILM("m", base_url=openai_server.url)
    result = RLM(root, sub_model=leaf, batch_max_concurrent=4).completion("c", "q")
    (batch,) = result.trace.batches
    waits = sorted(slot.queue_wait or 0 for slot in batch.slots)
    assert waits[3] < 0.05 <= waits[4]  # three waves of four
    assert waits[8] >= 0.1
    assert all((slot.latency or 0) >= 0.05 for slot in batch.slots)
    assert batch.approximate_latency is not None
    assert batch.approximate_latency < 0.05  # shorter than any slot took: it is no latency
