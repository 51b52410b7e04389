"""What a batch would take if nothing but the latencies cost time."""

from __future__ import annotations

import heapq
import math
import random


def lognormal(count: int, *, median: float, sigma: float, seed: int) -> list[float]:
    """Latencies in seconds; the same list for the same arguments."""
    draw = random.Random(seed)
    return [draw.lognormvariate(math.log(median), sigma) for _ in range(count)]


def bimodal(count: int, *, fast: float, slow: float, share: float, seed: int) -> list[float]:
    """Latencies in seconds, a ``share`` of them slow."""
    draw = random.Random(seed)
    return [slow if draw.random() < share else fast for _ in range(count)]


def heavy_tailed(count: int, *, least: int, most: int, alpha: float, seed: int) -> list[int]:
    """Lengths by Pareto's distribution, in characters."""
    draw = random.Random(seed)
    return [min(most, round(least * draw.paretovariate(alpha))) for _ in range(count)]


def lower_bound(latencies: list[float], lanes: int) -> float:
    """Seconds below which no schedule comes."""
    return max(max(latencies), sum(latencies) / lanes)


def fifo_makespan(latencies: list[float], lanes: int) -> float:
    """Seconds from the first start to the last end, with ``lanes`` at once in this order."""
    free = [0.0] * lanes
    for latency in latencies:
        heapq.heappush(free, heapq.heappop(free) + latency)
    return max(free)
