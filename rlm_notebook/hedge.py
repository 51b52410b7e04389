"""When the stragglers of a batch are asked a second time."""

from __future__ import annotations

import bisect
import math

FEWEST = 20
"""Slots that have to be answered before a percentile of their latencies means something."""


class Hedge:
    """The rule of one batch.

    Parameters
    ----------
    rule
        ``p95``: from the 95th percentile of the latencies of the slots that have ended on, at
        most 5% of the slots. Or a number of seconds, for any of them.
    size
        Slots of the batch.
    """

    def __init__(self, rule: str, size: int) -> None:
        percentile = rule.startswith("p")
        self._share = float(rule[1:]) / 100 if percentile else None
        self._seconds = None if percentile else float(rule)
        self._left = size if self._share is None else math.ceil((1 - self._share) * size)
        self._latencies: list[float] = []

    def ended(self, seconds: float) -> None:
        """A slot was answered."""
        bisect.insort(self._latencies, seconds)

    def after(self) -> float | None:
        """Seconds from which a slot is a straggler; None: not known, or no more may be asked."""
        if not self._left or self._share is None:
            return self._seconds if self._left else None
        if len(self._latencies) < FEWEST:
            return None
        return self._latencies[math.ceil(self._share * len(self._latencies)) - 1]

    def take(self) -> None:
        """A slot is asked a second time."""
        self._left -= 1
