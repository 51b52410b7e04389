"""Where a run is forked, and the trace that a fork begins with."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from rlm_notebook.errors import UsageError
from rlm_notebook.trace.events import Event, SpanEnded, SpansReopened, SpanText
from rlm_notebook.trace.trace import Trace
from rlm_notebook.trace.tree import Span

WITHOUT_END = ("cancelled", "interrupted", "not_sent", "waiting", "running")
"""States of what did not come to an end of its own."""


@dataclass(frozen=True)
class Edit:
    """What a fork changes at its place."""

    code: str | None = None
    """Turns and blocks: the code to run."""
    response: str | None = None
    """Turns and calls: the answer of the model."""
    prompt: str | None = None
    """Slots and single sub-calls: another prompt. Turns: a text that the model is told besides."""
    model: str | None = None
    """The model from there on; of a slot or a single sub-call: of it alone."""

    @property
    def names(self) -> list[str]:
        """What is changed."""
        return [name for name, value in vars(self).items() if value is not None]


def find_place(
    trace: Trace, turn: int | None = None, slot: str | None = None, span: int | None = None
) -> Span:
    """The span at which a run is to be forked.

    Parameters
    ----------
    turn
        From 1.
    slot
        A slot of that turn, as ``batch.slot``: batches from 1, slots from 0.
    span
        Or any span, by its id.

    Raises
    ------
    UsageError
        There is none, or it is not said which.
    """
    if (turn is None) == (span is None):
        raise UsageError("say where to fork: give a turn (and a slot of it), or a span")
    if span is not None:
        return trace.span(span)
    if not 1 <= (turn or 0) <= len(trace.turns):
        raise UsageError(f"turn {turn}: the turns of this run are 1 to {len(trace.turns)}")
    found = trace.turns[(turn or 0) - 1]
    if slot is None:
        return found
    batches = [each for each in found.walk() if each.kind == "batch"]
    batch, _, index = str(slot).rpartition(".")
    try:
        number = int(batch or 1) - 1
        slots = batches[number].slots if number >= 0 else []
        return next(each for each in slots if each.index == int(index))
    except (ValueError, IndexError, StopIteration):
        raise UsageError(
            f"slot {slot}: turn {turn} has {len(batches)} batches; give BATCH.SLOT, batches from 1 "
            "and slots from 0, for instance 1.17"
        ) from None


def forked(trace: Trace, span: Span, edit: Edit) -> tuple[Trace, list[int]]:
    """The trace without ``span`` and all that came after it; and which spans of it go on.

    An edited code or answer stands in it already, as the answer of the model.

    Raises
    ------
    UsageError
        The span cannot be changed in this way.
    """
    if edit.code is not None and edit.response is not None:
        raise UsageError(
            "change the code or the answer, not both: the code is a part of the answer"
        )
    call, response = _edited_call(span, edit)
    if span.parent is None:
        raise UsageError("a run is forked at one of its turns, blocks or calls: name one")
    inner, below, keeps = span.parent, span, call is span
    if span.kind == "turn" and call is not None:
        inner, below, keeps = span, call, True
    path = list(_upwards(inner))
    dropped: set[int] = set()
    for above in path:
        position = above.children.index(below)
        for number, sibling in enumerate(above.children):
            if number == position:
                goes = not keeps
            else:
                later = number > position and above.kind != "batch"
                goes = later or sibling.state in WITHOUT_END
            if goes:
                dropped.update(each.id for each in sibling.walk())
        below, keeps = above, True
    parent = {
        "trace": trace.path.name if trace.path is not None else None,
        "run": trace.header.run,
        "id": span.id,
        "place": span.place,
        "edited": edit.names,
    }
    header = msgspec.structs.replace(trace.header, run=uuid.uuid4().hex[:12], parent=parent)
    base, open_again = Trace(header), {each.id for each in path}
    for event in list(trace.events):
        if event.id not in dropped:
            kept_event = _as_forked(event, open_again, dropped, call, response)
            if kept_event is not None:
                base.append(kept_event)
    return base, [each.id for each in reversed(path)]


def _as_forked(
    event: Event, open_again: set[int], dropped: set[int], call: Span | None, response: str | None
) -> Event | None:
    if isinstance(event, SpansReopened):
        ids = [each for each in event.ids if each not in dropped]
        return msgspec.structs.replace(event, ids=ids)
    if event.id in open_again and isinstance(event, SpanEnded | SpanText):
        return None
    if call is not None and event.id == call.id:
        if isinstance(event, SpanText):
            return None
        if isinstance(event, SpanEnded):
            edited = {"response": call.response, **call.edited}
            attrs = {**event.attrs, "response": response, "edited": edited}
            attrs.pop("error", None)
            return msgspec.structs.replace(event, state="ok", attrs=attrs)
    return event


def _edited_call(span: Span, edit: Edit) -> tuple[Span | None, str | None]:
    """The call whose answer is edited, and its new answer."""
    if edit.code is None and edit.response is None:
        if edit.prompt is not None and span.kind not in ("turn", "slot", "lm_call"):
            raise UsageError(f"a {span.kind} has no prompt: fork at a turn or a call to change one")
        return None, None
    turn = next((each for each in _upwards(span) if each.kind == "turn"), None)
    calls = [each for each in turn.children if each.kind == "lm_call"] if turn is not None else []
    if edit.response is not None and span.kind in ("slot", "lm_call"):
        return span, edit.response
    if span.kind not in ("turn", "code") or not calls:
        what = "code" if edit.code is not None else "answer"
        raise UsageError(f"a {span.kind} has no {what} to change: fork at a turn or a block")
    if edit.response is not None:
        return calls[0], edit.response
    code, block = str(edit.code), f"```repl\n{edit.code}\n```"
    response = calls[0].response or ""
    if span.kind == "code" and span.code and span.code in response:
        return calls[0], response.replace(span.code, code, 1)
    return calls[0], block


def _upwards(span: Span) -> Iterator[Span]:
    above: Span | None = span
    while above is not None:
        yield above
        above = above.parent
