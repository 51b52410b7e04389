"""What a run gives back."""

from __future__ import annotations

import html
import json
from dataclasses import dataclass, field
from typing import Any, Literal

from rlm_notebook.lm.protocol import Usage
from rlm_notebook.trace.trace import Trace
from rlm_notebook.trace.tree import Span
from rlm_notebook.view.words import OUTCOMES

Outcome = Literal["answered", "answered_unseen", "fallback", "no_answer", "stopped", "error"]
SHOWN = 20_000
"""Characters of an answer that are displayed; ``result.answer`` is always whole."""


@dataclass
class Result:
    """The outcome of one run. Shows itself as a readable answer in a notebook."""

    answer: Any
    """The final answer as the model gave it, mostly a str (any JSON value is possible); None if
    there is none."""
    outcome: Outcome
    """answered, answered_unseen (before the output was seen), fallback (on request, after the
    turns had run out), no_answer, stopped, error."""
    trace: Trace = field(repr=False)
    partial: Any = None
    """What stood in ``answer["content"]`` without being called ready, if there is no answer."""
    stopped_by: str | None = None
    """user, interrupt, timeout, or the limit that was reached; for ``stopped``."""
    error: str | None = None
    """One line; for ``error``."""
    warnings: list[str] = field(default_factory=list)
    """What went wrong beside the run, for instance a trace that could not be written."""

    @property
    def usage(self) -> Usage:
        """Tokens and cost (USD) of all LM calls; a floor if ``usage.complete`` is False."""
        return self.trace.usage

    @property
    def seconds(self) -> float:
        """Wall time of the run."""
        return self.trace.seconds

    @property
    def turns(self) -> list[Span]:
        """The turns of the root run."""
        return self.trace.turns

    def __str__(self) -> str:
        return self.answer if isinstance(self.answer, str) else _text(self.answer)

    def summary(self) -> str:
        """One line: outcome, turns, calls, errors, tokens, seconds."""
        outcome = OUTCOMES[self.outcome] + (f" ({self.stopped_by})" if self.stopped_by else "")
        totals, usage = self.trace.tree.totals, self.usage
        parts = [outcome, _count(len(self.turns), "turn"), _count(totals.calls, "LM call")]
        if totals.errors:
            parts.append(_count(totals.errors, "error"))
        floor = "" if usage.complete else "at least "
        tokens = (usage.input_tokens or 0) + (usage.output_tokens or 0)
        if tokens or usage.complete:
            parts.append(f"{floor}{tokens:,} tokens")
        if usage.cost:
            about = "≈ " if usage.estimated and not floor else ""
            parts.append(f"{floor}{about}${usage.cost:.4f}")
        parts.append(f"{self.seconds:.2f} s")
        return " · ".join(parts)

    def _shown(self) -> str:
        if self.answer is not None:
            return _cut(str(self))
        if self.error:
            return self.error
        if self.partial is not None:
            return f"no answer; so far: {_cut(_text(self.partial))}"
        return "no answer"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        where = f"trace: {self.trace.path}" if self.trace.path else "the trace is kept in memory"
        lines = [self.summary(), where, *(f"warning: {warning}" for warning in self.warnings)]
        plain = "\n".join([self._shown(), "", *lines])
        good = self.outcome in ("answered", "fallback")
        color = "var(--jp-success-color1, #2e7d32)" if good else "var(--jp-warn-color1, #b26a00)"
        small = "".join(f"<div>{html.escape(line)}</div>" for line in lines)
        rich = (
            f'<div style="border-left: 3px solid {color}; padding: 2px 0 2px 12px">'
            f'<div style="white-space: pre-wrap; overflow-wrap: anywhere; font-size: 1.05em">'
            f"{html.escape(self._shown())}</div>"
            f'<div style="opacity: 0.7; font-size: 0.85em; margin-top: 6px">{small}</div></div>'
        )
        return {"text/plain": plain, "text/html": rich}


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, indent=2)


def _cut(text: str) -> str:
    if len(text) <= SHOWN:
        return text
    return f"{text[:SHOWN]}\n[... {len(text) - SHOWN:,} more characters: print(result.answer)]"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")
