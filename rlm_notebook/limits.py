"""The limits of a run: LM calls, tokens, cost and errors in a row, over the whole tree of children.

Checked before each call. (Turns, depth and wall time are limited where they are counted.)
"""

from __future__ import annotations

from dataclasses import dataclass

from rlm_notebook.settings import Settings
from rlm_notebook.trace.tree import Totals


@dataclass(frozen=True)
class RunLimits:
    """None is no limit. ``RunLimits(calls=50, cost=0.20)``"""

    calls: int | None = None
    """LM calls, the root's included; a call with its retries counts once."""
    tokens: int | None = None
    """Input and output tokens, as far as they are reported."""
    cost: float | None = None
    """USD, as far as it is reported."""
    errors: int | None = None
    """Failed calls in a row."""

    @classmethod
    def of(cls, settings: Settings) -> RunLimits:
        """The limits that the settings give."""
        return cls(settings.max_calls, settings.max_tokens, settings.max_cost, settings.max_errors)

    def share(self, totals: Totals) -> tuple[float, str]:
        """How much of the limit that is nearest is used, from 0 to 1, and which one that is."""
        tokens = totals.input_tokens + totals.output_tokens
        used = (
            ("max_calls", totals.calls, self.calls),
            ("max_tokens", tokens, self.tokens),
            ("max_cost", totals.cost or 0.0, self.cost),
        )
        shares = [(value / limit, name) for name, value, limit in used if limit]
        return max(shares, default=(0.0, ""))

    def reached(self, totals: Totals, errors_in_a_row: int) -> str | None:
        """Which limit forbids one more call, in words; None if none does."""
        tokens = totals.input_tokens + totals.output_tokens
        if self.calls is not None and totals.calls >= self.calls:
            return f"max_calls: {self.calls:,} LM calls"
        if self.tokens is not None and tokens >= self.tokens:
            return f"max_tokens: {tokens:,} of {self.tokens:,} tokens"
        if self.cost is not None and (totals.cost or 0.0) >= self.cost:
            return f"max_cost: ${totals.cost or 0.0:.4f} of ${self.cost:.4f}"
        if self.errors is not None and errors_in_a_row >= self.errors:
            return f"max_errors: {errors_in_a_row} errors in a row"
        return None
