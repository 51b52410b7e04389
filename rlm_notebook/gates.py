"""Gates: where a run stops for its user, who looks, changes what comes next, and lets it go on.

A pause is a span of its own (kind ``pause``) in the trace, so that the picture stays true: no call
gets slower by it. What was edited stands in the trace in both versions.
"""

from __future__ import annotations

import ast
import asyncio
import concurrent.futures
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from rlm_notebook.errors import UsageError
from rlm_notebook.trace.events import PAUSES

if TYPE_CHECKING:
    from rlm_notebook.trace.recorder import Recorder

Kind = Literal["call", "reply", "code", "batch", "slot", "budget"]
"""Before a root LM call, after an answer without code, before a code block, before a batch, at a
failed slot (or single sub-call), when most of a limit is used."""
Mode = Literal["run", "step", "turn", "batch", "error"]
"""Where to stop next: at breakpoints only, at every gate, at the next turn, batch or error."""
MODES: dict[str, Mode] = {
    "go": "step",
    "turn": "turn",
    "batch": "batch",
    "error": "error",
    "run": "run",
}
"""By the action that goes on."""
ACTIONS: dict[str, str] = {"code": "skip", "slot": "retry"}
"""What can be done at a kind of gate besides going on and stopping."""
NAMES = ("prompt", "code", "response", "error", "kind", "turn", "depth", "model")
"""What the expression of a breakpoint can ask for; '' where a gate has no such thing."""


class Break:
    """A breakpoint.

    Parameters
    ----------
    text
        ``turn=3``, ``error``, or a Python expression of ``prompt``, ``code``, ``response``,
        ``error``, ``kind``, ``turn``, ``depth`` and ``model``: ``'password' in prompt``.

    Raises
    ------
    UsageError
        It is none of these.
    """

    def __init__(self, text: str) -> None:
        self.text = text.strip()
        name, equals, number = (part.strip() for part in self.text.partition("="))
        self.turn: int | None = None
        self.on_error = self.text == "error"
        self._code: Any = None
        if name == "turn" and equals and number.isdigit():
            self.turn = int(number)
        elif not self.on_error:
            try:
                tree = ast.parse(self.text, "--break", "eval")
            except (SyntaxError, ValueError):
                raise UsageError(
                    f"--break {text}: write turn=3, error, or an expression such as "
                    "\"'password' in prompt\""
                ) from None
            names = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
            known = {*NAMES, *_BUILTINS, *(n.id for n in names if isinstance(n.ctx, ast.Store))}
            unknown = [node.id for node in names if node.id not in known]
            if unknown:
                raise UsageError(
                    f"--break {text}: there is no {unknown[0]}; there is: {', '.join(NAMES)}"
                )
            self._code = compile(tree, "--break", "eval")

    def holds(self, kind: Kind, about: dict[str, Any]) -> bool:
        """Whether a run stops at this gate."""
        if self.turn is not None:
            return kind == "call" and about.get("turn") == self.turn and about.get("depth") == 0
        if self.on_error:
            return kind == "slot"
        names = {**dict.fromkeys(NAMES, ""), **about, "kind": kind}
        try:
            return bool(eval(self._code, {"__builtins__": _BUILTINS, **names}))
        except Exception:  # whatever the user's expression raises of what there is at this gate
            return False


_BUILTINS = {f.__name__: f for f in (len, any, all, str, int, float, min, max, sum, sorted, abs)}


@dataclass
class Gate:
    """A place where the run stands still."""

    span: int
    """The ``pause`` span."""
    kind: Kind
    editable: dict[str, str]
    """What can be edited, by name: code, prompt, prompts (JSON), response, model."""
    about: dict[str, Any]
    decided: concurrent.futures.Future[Decision] = field(
        default_factory=concurrent.futures.Future, repr=False
    )

    @property
    def words(self) -> str:
        """``turn 2: before the code``"""
        turn, depth = self.about.get("turn"), self.about.get("depth")
        child = " of a child" if depth else ""
        return f"turn {turn}{child}: {PAUSES[self.kind]}"

    @property
    def actions(self) -> list[str]:
        """What can be done here."""
        own = [ACTIONS[self.kind]] if self.kind in ACTIONS else []
        return [*MODES, *own, "stop"]


@dataclass(frozen=True)
class Decision:
    """What the user wants."""

    action: str = "go"
    edits: dict[str, str] = field(default_factory=dict)


class Prompts(Mapping[str, str]):
    """The prompts of a batch as one text to edit, written only when it is looked at."""

    def __init__(self, prompts: list[str]) -> None:
        self._prompts = prompts

    def __getitem__(self, name: str) -> str:
        if name != "prompts":
            raise KeyError(name)
        return json.dumps(self._prompts, ensure_ascii=False, indent=1)

    def __iter__(self) -> Iterator[str]:
        return iter(("prompts",))

    def __len__(self) -> int:
        return 1


def prompts_of(text: str, count: int) -> list[str]:
    """The prompts that an edited text holds.

    Raises
    ------
    UsageError
        It is no JSON list of so many texts.
    """
    try:
        found = json.loads(text)
    except ValueError as error:
        raise UsageError(f"the prompts are no JSON list any more: {error}") from None
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        raise UsageError("the prompts must stay a JSON list of texts")
    if len(found) != count:
        raise UsageError(f"these are {len(found)} prompts, the code asks {count}")
    return found


def edited(name: str, before: Any, now: Any) -> dict[str, Any]:
    """The attribute of a span that says what stood there before the user edited it; none if not."""
    return {} if before == now else {"edited": {name: before}}


class Gates:
    """All gates of one run and its children. Gates may be decided from any thread.

    Parameters
    ----------
    step
        Whether it stops at the first gate.
    on_pause
        Called with True when the run begins to stand still, and with False when it goes on.
    """

    def __init__(
        self,
        recorder: Recorder,
        *,
        step: bool = False,
        breaks: tuple[Break, ...] = (),
        on_stop: Callable[[], None] = lambda: None,
        on_pause: Callable[[bool], None] = lambda _: None,
    ) -> None:
        self._recorder = recorder
        self._mode: Mode = "step" if step else "run"
        self._breaks = breaks
        self._on_stop = on_stop
        self._on_pause = on_pause
        self._lock = threading.Lock()
        self.waiting: dict[int, Gate] = {}
        """Gates at which the run stands still now, by their span."""
        self._warned = False

    def add(self, point: Break) -> None:
        """One more breakpoint."""
        self._breaks = (*self._breaks, point)

    def pause(self) -> None:
        """Stop at the next gate."""
        self._mode = "step"

    @property
    def pausing(self) -> bool:
        """Whether it stops at the next gate."""
        return self._mode == "step"

    @property
    def active(self) -> bool:
        """Whether it may stop anywhere."""
        return self._mode != "run" or bool(self._breaks)

    def decide(self, span: int, action: str, edits: Mapping[str, str] | None = None) -> None:
        """Go on from a gate. Others at which the run would no longer stop go on too.

        Raises
        ------
        UsageError
            The run does not stand there, or that cannot be done there.
        """
        edits = edits or {}
        with self._lock:
            gate = self.waiting.get(span)
            if gate is None:
                raise UsageError("the run does not stand there any more")
            if action not in gate.actions:
                raise UsageError(f"{action} is not possible here: {', '.join(gate.actions)}")
            unknown = [name for name in edits if name not in gate.editable]
            if unknown:
                raise UsageError(
                    f"{unknown[0]} cannot be edited here; there is: {', '.join(gate.editable)}"
                )
            if {"code", "response"} <= {n for n in edits if edits[n] != gate.editable[n]}:
                raise UsageError("edit the code or the answer that it comes from, not both")
            if "prompts" in edits:
                prompts_of(edits["prompts"], len(json.loads(gate.editable["prompts"])))
            del self.waiting[span]
            others: list[Gate] = []
            if action in MODES:
                self._mode = MODES[action]
                others = [g for g in self.waiting.values() if not self._stops(g.kind, g.about)]
                for other in others:
                    del self.waiting[other.span]
        if action == "stop":
            self._on_stop()
        gate.decided.set_result(Decision(action, dict(edits)))
        for other in others:
            other.decided.set_result(Decision(action))

    async def at(
        self, kind: Kind, parent: int, about: dict[str, Any], editable: Mapping[str, str]
    ) -> Decision:
        """Stop here if the user wants to; return what is to be done.

        Parameters
        ----------
        parent
            Under which span the pause stands.
        about
            Names of breakpoint expressions.
        """
        if not self._stops(kind, about):
            return Decision()
        editable = dict(editable)
        details: dict[str, Any] = {f"next_{name}": text for name, text in editable.items()}
        span = self._recorder.start("pause", parent, at=kind, **details)
        gate = Gate(span, kind, editable, about)
        with self._lock:
            self.waiting[span] = gate
            first = len(self.waiting) == 1
        if first:
            self._on_pause(True)
        try:
            decision = await asyncio.wrap_future(gate.decided)
        except asyncio.CancelledError:
            with self._lock:
                self.waiting.pop(span, None)
            self._recorder.end(span, "cancelled")
            raise
        finally:
            if not self.waiting:
                self._on_pause(False)
        edited = [name for name, text in decision.edits.items() if text != editable.get(name)]
        self._recorder.end(span, "ok", action=decision.action, changed=edited)
        if decision.action == "stop":
            await asyncio.Event().wait()  # until the cancellation is here
        return Decision(decision.action, {name: decision.edits[name] for name in edited})

    def _stops(self, kind: Kind, about: dict[str, Any]) -> bool:
        mode = self._mode
        wanted = {"turn": "call", "batch": "batch", "error": "slot"}.get(mode)
        if mode == "step" or (wanted is not None and kind in (wanted, "budget")):
            return True
        return any(each.holds(kind, about) for each in self._breaks)

    def warns(self, share: float) -> bool:
        """Whether to stop at the budget: once, when four fifths of it are used."""
        if self._warned or share < 0.8 or self._mode == "run":
            return False
        self._warned = True
        return True
