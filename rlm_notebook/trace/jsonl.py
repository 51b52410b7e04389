"""Writing traces: one JSON line an event, append-only, readable up to the last whole line.

A text of 512 characters or more is written once, as a ``text`` line, and referred to by its hash.
The writer has a thread of its own: encoding and fsync never delay a slot.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, final

import msgspec

from rlm_notebook.errors import TraceError, TraceExistsError
from rlm_notebook.trace.events import (
    Event,
    Header,
    SpanEnded,
    SpansReopened,
    SpanStarted,
    SpanText,
    SpanUpdated,
)

SUFFIX = ".rlm.jsonl"
SHARED_TEXT = 512
"""Characters from which a text is stored on a line of its own. A reference takes about 60."""
TURN_KINDS = ("run", "turn")
"""Spans whose end is made durable with fsync."""
FLUSH_SECONDS = 0.05
"""Pause between flushes; an event is in the file 100 ms after it happened, at the latest."""


@final
class Text(msgspec.Struct, frozen=True, tag_field="e", tag="text"):
    """A text that events refer to by its hash."""

    hash: str
    text: str


Line = Header | Text | SpanStarted | SpanUpdated | SpanText | SpanEnded | SpansReopened

_PIECE = 1 << 16
"""Bytes that are searched at once for the last newline."""
_encoder = msgspec.json.Encoder(enc_hook=repr)


class JsonlWriter:
    """A sink that appends to a new file, or to an old one; no other process can write it meanwhile.

    Parameters
    ----------
    path
        Must not exist; its folder is made where needed.
    header
        First line of a new file; None: go on with the file that exists.

    Raises
    ------
    TraceError
        The file exists or cannot be made; or it does not exist, or is written by another run.
    """

    def __init__(
        self,
        path: Path,
        header: Header | None,
        *,
        on_error: Callable[[str], None] = lambda _: None,
    ) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file: BinaryIO = path.open("r+b" if header is None else "xb", buffering=0)
            if not _locked(self._file):
                self._file.close()
                raise TraceError(f"{path} is being written by another run: wait, or stop that run")
            if header is None:
                _cut_to_whole_lines(self._file)
        except FileExistsError:
            raise TraceExistsError(f"{path} exists: choose another trace path") from None
        except OSError as error:
            raise TraceError(
                f"cannot write the trace {path}: {error.strerror or error}; "
                "give a writable path with --trace PATH"
            ) from None
        self.path = path
        self._on_error = on_error
        self._queue: deque[Event] = deque()
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._failed = False
        self._texts: set[str] = set()
        self._turns: set[int] = set()
        self._header = header  # written with the first event, which sets its time
        self._thread = threading.Thread(target=self._run, name="rlm-trace", daemon=True)
        self._thread.start()

    def emit(self, event: Event) -> None:
        """Queue one event; it is on disk within 100 ms."""
        self._queue.append(event)  # atomic: no lock on the path of a slot
        if not self._wake.is_set():
            self._wake.set()

    def close(self) -> None:
        """Write what is queued, fsync, and close the file."""
        self._closing.set()
        self._wake.set()
        self._thread.join()

    def _run(self) -> None:
        while True:
            self._wake.wait()
            self._wake.clear()
            closed = self._closing.is_set()
            self._flush()
            if closed:
                self._flush()
                break
            self._closing.wait(FLUSH_SECONDS)
        try:
            self._file.close()
        except OSError as error:
            self._fail(error)

    def _flush(self) -> None:
        lines: list[bytes] = []
        if self._header is not None and (self._queue or self._closing.is_set()):
            lines.append(_encoder.encode(self._header))
            self._header = None
        durable = self._closing.is_set()
        while self._queue:
            event = self._queue.popleft()
            attrs = {name: self._shared(value, lines) for name, value in event.attrs.items()}
            lines.append(_encode(msgspec.structs.replace(event, attrs=attrs)))
            if isinstance(event, SpanStarted):
                if event.kind in TURN_KINDS:
                    self._turns.add(event.id)
            elif isinstance(event, SpanEnded) and event.id in self._turns:
                durable = True
        if not lines or self._failed:
            return
        try:
            self._write(b"\n".join(lines) + b"\n")
            if durable:
                os.fsync(self._file.fileno())
        except OSError as error:
            self._fail(error)

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[self._file.write(view) or 0 :]

    def _fail(self, error: OSError) -> None:
        if not self._failed:
            self._failed = True
            self._on_error(
                f"the trace {self.path} is incomplete: {error.strerror or error}; "
                "the run goes on, and result.trace.save(PATH) writes it elsewhere"
            )

    def _shared(self, value: Any, lines: list[bytes]) -> Any:
        """The value with every long text replaced by a reference; new texts go into ``lines``."""
        if isinstance(value, str):
            if len(value) < SHARED_TEXT:
                return clean(value)
            text = clean(value)
            digest = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
            if digest not in self._texts:
                self._texts.add(digest)
                lines.append(_encoder.encode(Text(digest, text)))
            return {"$text": digest, "chars": len(text)}
        if isinstance(value, dict):
            return {clean(str(k)): self._shared(v, lines) for k, v in value.items()}
        if isinstance(value, list | tuple):
            return [self._shared(item, lines) for item in value]
        return value


def _locked(file: BinaryIO) -> bool:
    """Lock the file for this process until it is closed; False if another one has it."""
    try:
        import fcntl
    except ImportError:  # Windows: a file that is open for writing is not shared there anyway
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True  # a file system without locks
    return True


def _cut_to_whole_lines(file: BinaryIO) -> None:
    """Take off a last line that was cut, and stand at the end."""
    end = file.seek(0, os.SEEK_END)
    while end:
        start = max(0, end - _PIECE)
        file.seek(start)
        newline = file.read(end - start).rfind(b"\n")
        if newline >= 0:
            end = start + newline + 1
            break
        end = start
    file.truncate(end)
    file.seek(end)


def _encode(event: Event) -> bytes:
    try:
        return _encoder.encode(event)
    except (TypeError, ValueError, OverflowError, RecursionError):
        # a value of another engine that JSON cannot hold (huge integers, cycles): keep its repr
        attrs = json.loads(json.dumps(event.attrs, default=repr, skipkeys=True))
        return _encoder.encode(msgspec.structs.replace(event, attrs=attrs))


def clean(text: str) -> str:
    """The text with lone surrogates replaced by U+FFFD, so that it can be encoded."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def text_of(value: Any) -> str:
    """A value as text: a str as it is, None as '', other values as JSON."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        return repr(value)
