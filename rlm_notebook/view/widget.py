"""The live view: an anywidget that is told what changed, and asks for what it wants to show.

The data stays in Python. Messages to the browser: ``rows`` (what changed, numbered), ``snapshot``
(all of it, in parts), ``fields`` and ``text`` (answers). From the browser: ``snapshot``,
``fields``, ``text``, ``stop``, ``pause``, ``gate`` (what can be edited there), ``decide``,
``forkable`` (what can be changed in a fork there) and ``fork``. A
hole in the numbers makes the browser ask for a snapshot, since the server drops messages above
its rate limit.
"""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from rlm_notebook.errors import RLMError, UsageError
from rlm_notebook.trace.events import Event, SpansReopened
from rlm_notebook.view.forking import OnFork, forkable
from rlm_notebook.view.rows import Field, fields, row, summary

if TYPE_CHECKING:
    from rlm_notebook.gates import Gates
    from rlm_notebook.trace.trace import Trace
    from rlm_notebook.trace.tree import Span

BUNDLE = Path(__file__).parents[1] / "frontend" / "dist"
MESSAGE_BYTES = 200_000
"""Bytes of rows in one message; with its envelope it stays below 256 KB."""
HEAD = 16_000
"""Characters of a text that is sent when a row is opened."""
EDITABLE = 40_000
"""Characters of a text that can be edited in the browser."""
PART = 64_000
"""Characters of each further part of a text."""


class LiveView:
    """A sink of a run that shows it in the browser.

    Parameters
    ----------
    now
        ns since the trace began.
    on_stop
        Called, on the kernel's main thread, when the user presses Stop.
    warnings
        Shown in the header; read at each flush.
    gates
        Where the run stops for the user.
    on_fork
        Begins a fork that the user wants; None if there can be none.
    """

    def __init__(
        self,
        trace: Trace,
        *,
        now: Callable[[], int],
        on_stop: Callable[[], None],
        warnings: list[str],
        gates: Gates | None = None,
        on_fork: OnFork | None = None,
    ) -> None:
        self._gates = gates
        self._on_fork = on_fork
        self._forking: set[asyncio.Task[None]] = set()
        self._trace = trace
        self._now = now
        self._on_stop = on_stop
        self._warnings = warnings
        self._changed: deque[int] = deque()
        self._lock = threading.Lock()
        self._sequence = 0
        self._ended = False
        self.widget = _make_widget()
        self.widget.on_msg(self._receive)

    def emit(self, event: Event) -> None:
        """Note that a span changed (atomic: no lock on the path of a slot)."""
        if isinstance(event, SpansReopened):
            self._changed.extend(each for each in event.ids if each in self._trace.tree.spans)
        else:
            self._changed.append(event.id)

    def flush(self) -> None:
        """Send at most one message with what changed since the last one."""
        with self._lock:
            if self._changed:
                self._send("rows", self._take_changed())

    def close(self) -> None:
        """Send what is left; the view stays open for the user to look at."""
        with self._lock:
            while self._changed:
                self._send("rows", self._take_changed())
            self._ended = True
            self._send("rows", [])

    def forget(self) -> None:
        """Take the widget off the kernel and the browser; the saved tree stays."""
        self.widget.layout.close()
        self.widget.close()

    def mimebundle(self) -> dict[str, Any]:
        """What the cell's output is: the widget while the run goes on, then the static tree.

        A saved widget is an error message once its kernel is gone, so it must not stay in the
        notebook. In a live front end the widget takes the place of the static tree by itself.
        """
        tree = f'<div id="{self.widget.place}"><div>{self._trace.to_html()}</div></div>'
        bundle = {"text/html": tree, "text/plain": self._trace.to_text()}
        if self._ended:
            return bundle
        return {**dict((self.widget._repr_mimebundle_() or ({},))[0]), **bundle}

    def _take_changed(self) -> list[bytes]:
        """Rows of the spans that changed, as many as fit into one message."""
        rows: dict[int, bytes] = {}
        size = 0
        while self._changed and size < MESSAGE_BYTES:
            number = self._changed.popleft()
            if number not in rows:
                rows[number] = _encoded(self._trace.tree.spans[number])
                size += len(rows[number])
        return list(rows.values())

    def _send(self, kind: str, rows: list[bytes], **more: Any) -> None:
        self._sequence += 1
        header = summary(self._trace, self._now(), self._warnings)
        self.widget.send(
            {
                "type": kind,
                "seq": self._sequence,
                "rows": [msgspec.json.decode(row) for row in rows],
                "summary": msgspec.to_builtins(header),
                "ended": self._ended,
                "forks": self._on_fork is not None,
                **self._standing(),
                **more,
            }
        )

    def _receive(self, _: object, content: Any, buffers: object) -> None:
        """Answer the browser; what is no request of ours is left alone."""
        if not isinstance(content, dict):
            return
        kind = content.get("type")
        if kind == "stop":
            self._on_stop()
        elif kind in ("pause", "gate", "decide"):
            self._at_gate(kind, content)
        elif kind in ("forkable", "fork"):
            self._at_fork(kind, content)
        elif kind == "snapshot":
            self._send_snapshot()
        elif kind in ("fields", "text"):
            self._send_texts(content)

    def _standing(self) -> dict[str, Any]:
        """Where the run stands still, and whether it will at the next gate."""
        gates = self._gates
        if gates is None:
            return {}
        return {"paused": sorted(gates.waiting), "pausing": gates.pausing}

    def _at_gate(self, kind: str, content: dict[str, Any]) -> None:
        gates, number = self._gates, content.get("id")
        if gates is None:
            return
        if kind == "pause":
            gates.pause()
            with self._lock:
                self._send("rows", [])
        elif kind == "gate" and isinstance(number, int):
            gate = gates.waiting.get(number)
            if gate is not None:
                self.widget.send(
                    {
                        "type": "gate",
                        "id": number,
                        "words": gate.words,
                        "actions": gate.actions,
                        "texts": _short(gate.editable),
                    }
                )
        elif isinstance(number, int):
            try:
                gates.decide(number, str(content.get("action")), _edits(content))
            except UsageError as error:
                self.widget.send({"type": "refused", "id": number, "message": str(error)})

    def _at_fork(self, kind: str, content: dict[str, Any]) -> None:
        number, on_fork = content.get("id"), self._on_fork
        span = self._trace.tree.spans.get(number) if isinstance(number, int) else None
        if span is None or on_fork is None:
            return
        if kind == "forkable":
            texts = forkable(span)
            if texts is not None:
                self.widget.send({"type": "forkable", "id": number, "texts": _short(texts)})
            return
        task = asyncio.get_running_loop().create_task(self._fork(on_fork, span, _edits(content)))
        self._forking.add(task)
        task.add_done_callback(self._forking.discard)

    async def _fork(self, on_fork: OnFork, span: Span, edits: dict[str, str]) -> None:
        try:
            words = await on_fork(self._trace, span, edits)
        except (RLMError, OSError) as error:
            self.widget.send({"type": "refused", "id": span.id, "message": str(error)})
        else:
            self.widget.send({"type": "forked", "id": span.id, "message": words})

    def _send_snapshot(self) -> None:
        with self._lock:
            rows = [_encoded(span) for span in list(self._trace.tree.spans.values())]
            parts = _parts(rows) or [[]]
            for number, part in enumerate(parts):
                self._send("snapshot", part, part=number, parts=len(parts))

    def _send_texts(self, content: dict[str, Any]) -> None:
        number, name, offset = (content.get(key) for key in ("id", "name", "offset"))
        span = self._trace.tree.spans.get(number) if isinstance(number, int) else None
        if span is None:
            return
        found = fields(span)
        if content["type"] == "fields":
            # All heads together stay below the limit of a message, however many there are.
            head = min(HEAD, 200_000 // (4 * max(1, len(found))))
            shown = [_shown(field, head) for field in found]
            self.widget.send({"type": "fields", "id": number, "fields": shown})
            return
        for field in found:
            if field.name == name and isinstance(offset, int) and offset >= 0:
                text = field.text[offset : offset + PART]
                answer = {"type": "text", "id": number, "name": name, "offset": offset}
                self.widget.send({**answer, "text": text, "chars": len(field.text)})


def _short(texts: dict[str, str]) -> dict[str, str]:
    """What is not too long to be edited in the browser."""
    return {name: text for name, text in texts.items() if len(text) <= EDITABLE}


def _edits(content: dict[str, Any]) -> dict[str, str]:
    edits = content.get("edits")
    texts = edits if isinstance(edits, dict) else {}
    return {str(name): text for name, text in texts.items() if isinstance(text, str)}


def _shown(field: Field, head: int) -> dict[str, Any]:
    return {
        "name": field.name,
        "text": field.text[:head],
        "chars": len(field.text),
        "code": field.code,
    }


def _encoded(span: Span) -> bytes:
    return msgspec.json.encode(row(span))


def _parts(rows: list[bytes]) -> list[list[bytes]]:
    """The rows in order, in parts that fit into one message each."""
    parts: list[list[bytes]] = []
    size = MESSAGE_BYTES
    for each in rows:
        if size >= MESSAGE_BYTES:
            parts.append([])
            size = 0
        parts[-1].append(each)
        size += len(each)
    return parts


def _make_widget() -> Any:
    import anywidget
    import traitlets

    class CallTree(anywidget.AnyWidget):
        """The browser's half; all data comes by messages, so a saved notebook holds none."""

        _esm = BUNDLE / "widget.js"
        _css = BUNDLE / "widget.css"
        place = traitlets.Unicode().tag(sync=True)
        """Id of the element in which the static tree of this run stands."""

    return CallTree(place=f"rlm-{uuid.uuid4().hex}")
