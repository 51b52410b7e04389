"""How fast requests may be sent: a rate that was set, and a rate that is learned from refusals."""

from __future__ import annotations

from collections import deque

WINDOW = 1.0
"""Seconds over which a rate is measured at the least."""
RECENT = 8
"""Requests over which a rate is measured that has been growing."""
CAUTION = 0.98
"""Part of the measured rate that is asked for after a refusal."""
SOON = 0.95
"""Part of the rate that is asked for after a refusal too early to measure."""
STRICT = 0.8
"""Measured part of the rate at a refusal from which the provider allows no burst."""
FIRST = 10.0
"""Requests per second that are tried at least after the first refusal of all."""
SLOWEST = 0.5
"""Requests per second below which no refusal takes the learned rate."""
FORGET_SECONDS = 60.0
"""After so long without a request and without a refusal, the rate is unknown again."""


class Bucket:
    """A rate that was set: so much per second, saved up for at most a second.

    Parameters
    ----------
    per_second
        Requests or tokens.
    """

    def __init__(self, per_second: float) -> None:
        self.per_second = per_second
        self._capacity = max(1.0, per_second)
        self._level = self._capacity
        self._at = 0.0

    def ready_at(self, now: float, amount: float = 1.0) -> float:
        """When ``amount`` may be taken. One above the capacity may go, and is paid off after."""
        self._fill(now)
        missing = min(amount, self._capacity) - self._level
        return now if missing <= 0 else now + missing / self.per_second

    def take(self, now: float, amount: float = 1.0) -> None:
        """Take it; a negative amount gives back what was not used."""
        self._fill(now)
        self._level = min(self._capacity, self._level - amount)

    def _fill(self, now: float) -> None:
        if now > self._at:
            filled = self._level + (now - self._at) * self.per_second
            self._level, self._at = min(self._capacity, filled), now


class LearnedPace:
    """The rate that a provider lets through, found out from its refusals (429).

    At a refusal the provider's allowance is used up, so what it let through between two refusals,
    divided by the time, is its rate, whatever burst it allows. A little less than that is asked
    for, then more and more until the next refusal: there is no other way to find out that a limit
    was lifted. Before the first measurement the rate grows fast, and what counts is the time
    just before the refusal. No refusal, no pace.
    """

    def __init__(self) -> None:
        self._base: float | None = None
        self.measured = False
        """Whether the rate is known well."""
        self._refused = 0.0
        self._sent: deque[float] = deque(maxlen=1_024)
        self._since = 0.0
        self._admitted = 0
        self._grown = 0
        self._next = 0.0

    @property
    def rate(self) -> float | None:
        """Requests per second that go out now; None: as many as are wanted."""
        if self._base is None:
            return None
        count = self._grown
        growth = 6e-6 * count * count if self.measured else 0.1 * count
        return self._base * (1 + growth)

    def ready_at(self, now: float) -> float:
        """When the next request may be sent."""
        return now if self._base is None else max(now, self._next)

    def sent(self, now: float, *, idle: bool) -> None:
        """A request goes out; ``idle`` if it is the only one."""
        quiet = now - (self._sent[-1] if self._sent else 0.0)
        if idle and quiet > WINDOW:
            self._since, self._admitted = now, 0  # idle time is no measure of a rate
            if quiet > FORGET_SECONDS and now - self._refused > FORGET_SECONDS:
                self._base = None
        self._sent.append(now)
        self._admitted += 1
        self._grown += 1
        rate = self.rate
        if rate is not None:
            self._next = max(now, self._next) + 1 / rate

    def refused(self, begun: float, now: float, *, again: bool) -> None:
        """A request was refused.

        Parameters
        ----------
        begun
            When it was sent.
        again
            True if it was sent before the refusal that was learned from last.
        """
        if begun in self._sent:
            self._sent.remove(begun)
        if begun >= self._since:
            self._admitted -= 1
        if again:
            return
        rate, elapsed = self.rate, now - self._since
        if rate is None:
            self._base = max(FIRST, self._recent(now, RECENT, WINDOW))
            self.measured = False
        elif not self.measured:
            self._base = max(SLOWEST, CAUTION * min(rate, self._recent(now, RECENT)))
            self.measured = elapsed >= WINDOW
        elif elapsed >= WINDOW:
            measured = max(rate / 2, self._admitted / elapsed)
            if measured > STRICT * rate:
                measured = rate  # no burst was used up: what was refused was just too fast
            self._base = max(SLOWEST, CAUTION * min(rate, measured))
        else:
            self._base = max(SLOWEST, SOON * rate)
        if rate is None or elapsed >= WINDOW:
            self._since, self._admitted = now, 0
        self._grown = 0
        self._refused = now
        self._next = now + 1 / self._base

    def _recent(self, now: float, count: int, least: float = 0.0) -> float:
        """Requests per second over the last ``count``, or over ``least`` seconds."""
        sent = [at for at in self._sent if now - at < least] or list(self._sent)[-count:]
        return len(sent) / max(now - sent[0], least, 1e-3) if sent else 0.0
