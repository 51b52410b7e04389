"""When a failed call is sent again, and after how long. The only place where calls are retried.

A small rule of our own: the libraries for this wrap the call and hide its attempts, while here
each attempt is a record of the trace.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from rlm_notebook.errors import LMError


@dataclass(frozen=True)
class RetryPolicy:
    """Jittered exponential back-off. ``RetryPolicy(attempts=1)`` never retries."""

    attempts: int = 4
    """Requests that one call may cost, the first one included."""
    refusals: int = 10
    """Requests of one call that may be refused for their rate (429) besides, where it is tried
    again at all: they cost nothing, and how fast they go is for the provider's limit to learn."""
    first: float = 0.5
    """Upper end of the first wait, seconds; each further one may be twice as long."""
    longest: float = 20.0
    """Upper end of every wait, seconds."""
    dice: Callable[[], float] = random.random
    """Uniform in [0, 1); injected, so that tests own the chance."""

    def wait(self, failed: int, error: LMError, refused: int = 0) -> float | None:
        """Seconds to wait until the next attempt; None if there is none.

        Parameters
        ----------
        failed
            Attempts that have failed, this one included, those that were refused left out.
        refused
            Attempts that were refused for their rate, this one included.

        A server's own ``Retry-After`` is kept to, with a little jitter on top so that not all come
        back at once.
        """
        if not error.transient or failed >= self.attempts:
            return None
        if refused and (self.attempts == 1 or refused >= self.refusals):
            return None
        if error.type == "no_stream":
            return 0.0  # the next one is asked in another way
        if error.retry_after is not None:
            return error.retry_after * (1 + 0.1 * self.dice()) + 0.01 * self.dice()
        # From half of the upper end on: a full jitter would ask some again at once.
        return min(self.longest, self.first * 2.0 ** (max(failed, refused) - 1)) * (
            0.5 + 0.5 * self.dice()
        )
