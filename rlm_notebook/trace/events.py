"""The records a trace is made of. A run is a function of these events and of nothing else.

Five records carry all: a span starts, is updated, streams text, ends, and spans are opened again
when a run is resumed. What a span of each kind holds is written down in the ``...Attrs`` classes:
all keys are optional, unknown keys are kept, so that other engines and later versions can add.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypedDict, final

import msgspec

FORMAT_VERSION = 1
"""Version of the file format; files of this version open in later ones."""

Count = Annotated[int, msgspec.Meta(ge=0, le=(1 << 62) - 1)]

Kind = Literal["run", "turn", "lm_call", "code", "batch", "slot", "tool", "pause"]
"""``run`` > ``turn`` > ``lm_call`` and ``code``; ``code`` > ``batch`` > ``slot``, single sub-calls
(``lm_call``), child runs (``run``, under the ``slot`` or ``code`` that started them), and
functions of the user (``tool``). A ``pause`` stands where the run stood still for its user."""

PAUSES: dict[str, str] = {
    "call": "before the LM call",
    "reply": "after an answer without code",
    "code": "before the code",
    "batch": "before the batch",
    "slot": "at a failed call",
    "budget": "because a limit is near",
}
"""Where a ``pause`` is, in words, by its ``at``."""

State = Literal[
    "waiting",  # submitted, not started (in a queue)
    "running",
    "ok",
    "empty",  # an LM call that returned an empty text
    "null",  # an LM call that returned no content at all
    "error",
    "cancelled",
    "not_sent",  # a slot that was never sent, because the batch or the run had ended
    "skipped",  # a code block after the one that gave the answer
    "interrupted",  # still open when the trace ended (set on reading, never written)
]

END_STATES: frozenset[str] = frozenset(
    ("ok", "empty", "null", "error", "cancelled", "not_sent", "skipped", "interrupted")
)


@final
class SpanStarted(msgspec.Struct, frozen=True, tag_field="e", tag="start"):
    """A span was submitted. It runs at once, unless ``state`` is ``waiting``."""

    t: Count
    """Time in ns since the trace began (monotonic)."""
    id: Count
    parent: Count | None
    kind: str
    state: Literal["waiting", "running"]
    attrs: dict[str, Any]


@final
class SpanUpdated(msgspec.Struct, frozen=True, tag_field="e", tag="update", omit_defaults=True):
    """A span got new attributes; ``state="running"`` marks the moment it left its queue."""

    t: Count
    id: Count
    attrs: dict[str, Any]
    state: str | None = None


@final
class SpanText(msgspec.Struct, frozen=True, tag_field="e", tag="more"):
    """More of a response that is streamed; the end of the span gives it whole."""

    t: Count
    id: Count
    attrs: dict[str, Any]
    """``text``: what is to be added."""


@final
class SpanEnded(msgspec.Struct, frozen=True, tag_field="e", tag="end"):
    """A span ended in one of the end states."""

    t: Count
    id: Count
    state: str
    attrs: dict[str, Any]


@final
class SpansReopened(msgspec.Struct, frozen=True, tag_field="e", tag="reopen"):
    """A run that had stopped goes on: these spans are open again. Its time stood still meanwhile."""

    t: Count
    id: Count
    """The root run."""
    ids: list[Count]
    """All of them: runs, turns, blocks and batches go on, LM calls are waiting to be asked again."""
    attrs: dict[str, Any]
    """``at``: wall-clock time, ISO 8601; ``settings`` that were changed."""


Event = SpanStarted | SpanUpdated | SpanText | SpanEnded | SpansReopened


@final
class Header(msgspec.Struct, tag_field="e", tag="header"):
    """First line of a trace file. Holds no secret."""

    format: int
    started_at: str
    """Wall-clock time of t = 0, ISO 8601 with offset."""
    engine: str
    """Which engine made the run, with its version."""
    settings: dict[str, Any] = {}
    packages: dict[str, str] = {}
    """Versions of Python and of the packages that matter."""
    parent: dict[str, Any] = {}
    """Forks: ``trace`` (name of the parent's file), ``id`` and ``place`` (the span it was forked at,
    and that in words), ``edited`` (what was changed)."""
    run: str = ""
    """A name of its own for the run, by which its forks know it."""


class ErrorInfo(TypedDict, total=False):
    """Why something failed."""

    type: str
    """Short stable name, for instance ``timeout``, ``http``, ``SyntaxError``."""
    message: str
    """One line."""
    status: int
    """HTTP status, where there was one."""


class EditedAttrs(TypedDict, total=False):
    """What stood in a span before the user edited it, by the name of the attribute: ``edited`` of
    calls and code. The attribute itself holds what was used."""

    prompt: str
    messages: list[dict[str, str]]
    response: str | None
    code: str
    error: ErrorInfo
    model: str


class UsageAttrs(TypedDict, total=False):
    """See :class:`rlm_notebook.lm.protocol.Usage`."""

    input_tokens: int
    output_tokens: int
    cost: float
    complete: bool
    cached_tokens: int
    estimated: bool


class RunAttrs(TypedDict, total=False):
    """A root run or a child run."""

    question: str
    context: str
    """One-line description: type, size, structure. Never the content."""
    model: str
    sub_model: str
    depth: int
    """0 for the root run."""
    repl: str
    """subprocess, kernel or monty."""
    prompt: str
    """Child runs of a single ``rlm_query``: their context. Those of a batch have it in their slot."""
    context_digest: str
    """Root run: BLAKE2b of the context, under which it may be kept beside the trace."""
    # at the end:
    answer: Any
    """The final answer as the model gave it (JSON value, mostly str)."""
    partial: Any
    """What the model had put into ``answer["content"]`` without calling it ready."""
    outcome: str
    """answered, answered_unseen, fallback, no_answer, stopped, error."""
    stopped_by: str
    """timeout, user, interrupt or the limit that was reached, for ``outcome="stopped"``."""
    error: ErrorInfo
    usage: UsageAttrs


class TurnAttrs(TypedDict, total=False):
    """One turn of a run."""

    index: int
    """From 0."""
    final: bool
    """True for the request for a final answer after the last turn."""
    note: str
    """What the engine did on its own account, for instance "no code block in the reply"."""


class Attempt(TypedDict, total=False):
    """One request of a call that took more than one."""

    started: int
    """ns since the trace began."""
    ended: int
    error: ErrorInfo
    """Absent for the attempt that succeeded."""
    wait: float
    """Seconds of back-off after it; absent if there was no further attempt. What is left until
    the next attempt started is queue wait: its provider had no place."""
    hedge: bool
    """True if it was sent beside a slow one."""
    cancelled: bool
    """True if another attempt answered first."""


class CallAttrs(TypedDict, total=False):
    """An ``lm_call`` (root or single sub-call) or a ``slot``."""

    index: int
    """Slots: position in the batch, from 0."""
    function: str
    """Sub-calls: ``llm_query``, ``llm_query_batched``, ``rlm_query``, ``rlm_query_batched``."""
    purpose: str
    """root, sub or final."""
    model: str
    messages: list[dict[str, str]]
    """Root calls: the whole conversation, as role and content."""
    prompt: str
    """Sub-calls and slots."""
    # at the end:
    response: str | None
    error: ErrorInfo
    usage: UsageAttrs
    finish_reason: str
    attempts: list[Attempt]
    """All requests of the call, if there was more than one."""
    edited: EditedAttrs
    first_token: int
    """Streamed calls: when the first piece of the text came, ns since the trace began."""


class BatchAttrs(TypedDict, total=False):
    """One call of a batched function."""

    function: str
    size: int
    limit: int
    """``batch_max_concurrent`` or ``max_concurrent_subcalls``."""
    model: str


class ToolAttrs(TypedDict, total=False):
    """One call of a function of the user."""

    function: str
    arguments: str
    """As Python shows them."""
    # at the end:
    result: str
    value: Any
    """The result as JSON data, where it is some and no str."""
    error: ErrorInfo


class PauseAttrs(TypedDict, total=False):
    """The run stood still for its user, see :mod:`rlm_notebook.gates`."""

    at: str
    """call, reply, code, batch, slot, budget: what would have come next, or had just failed."""
    next_code: str
    """What was shown, and could be edited; also ``next_prompt``, ``next_prompts``..."""
    # at the end:
    action: str
    """go, turn, batch, error, run, skip, retry or stop."""
    changed: list[str]
    """What was edited."""


class CodeAttrs(TypedDict, total=False):
    """One code block."""

    index: int
    """Position in the reply, from 0."""
    code: str
    # at the end:
    stdout: str
    stderr: str
    error: ErrorInfo
    traceback: str
    order: list[tuple[str, int]]
    """If both streams were written to: which one, and how many characters, in turn."""
    variables: list[list[str]]
    """Name, type, size and short value of each user variable after the block."""
    changes: dict[str, list[str]]
    """``new``, ``changed``, ``gone``: names of variables, against the block before."""
    edited: EditedAttrs
    note: str
    """What the REPL did on its own account: which reserved names were restored, which loops were
    run as a batch, how lost variables came back."""
