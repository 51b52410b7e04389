"""Reading traces: also those that were cut, damaged, edited by hand, or made by a stranger.

One pass folds the events into the tree. Texts and events stay in the file until they are looked at,
so that a trace of a million events opens in seconds.
"""

from __future__ import annotations

import gc
import threading
import weakref
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, overload

import msgspec

from rlm_notebook.errors import TraceError
from rlm_notebook.trace.events import (
    FORMAT_VERSION,
    Event,
    Header,
    SpansReopened,
    SpanStarted,
    SpanText,
    SpanUpdated,
)
from rlm_notebook.trace.jsonl import Line, Text, text_of
from rlm_notebook.trace.trace import Trace

LONGEST_LINE = 1 << 28
"""Bytes of a line from which it is left out: a file can be one endless line."""
STREAMED_BYTES = 1 << 24
"""Beside the size of the file: what its pieces of streamed texts may add up to."""
MOST_NOTES = 20

_GZIP = b"\x1f\x8b"
_NEWLINE = ord("\n")
_BLOCK = 1 << 16
_REFERENCE = b'"$text"'
_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
_ORDER: dict[type[Event], int] = {SpanStarted: 0, SpansReopened: 1, SpanUpdated: 2, SpanText: 3}
_decoder: msgspec.json.Decoder[Line] = msgspec.json.Decoder(Line)


def load(path: str | Path) -> Trace:
    """Read a trace file; one that was cut anywhere loads up to its last whole line.

    Spans that were open where the file ends are ``interrupted``. Lines that cannot be read are
    left out, lines out of order are put in order; ``trace.notes`` says so.

    Raises
    ------
    TraceError
        The file cannot be read, is no trace, or is of a newer format.
    """
    path = Path(path)
    try:
        return _Reader(path).read()
    except OSError as error:
        raise TraceError(f"cannot read the trace {path}: {error.strerror or error}") from None


class StoredTexts:
    """The long texts of a file, by their hash; each is read when it is first looked at."""

    def __init__(self, path: Path) -> None:
        file = path.open("rb")
        self.file = file
        """Stays open: what the trace refers to is there as long as the trace is."""
        self._lock = threading.Lock()
        self._at: dict[str, int] = {}
        self._texts: dict[str, str] = {}
        weakref.finalize(self, file.close)

    def add(self, digest: str, at: int) -> None:
        """The text with that hash stands on the line that begins there."""
        self._at.setdefault(digest, at)

    def line(self, at: int) -> bytes:
        """The line that begins there."""
        with self._lock:
            self.file.seek(at)
            return self.file.readline(LONGEST_LINE)

    def text(self, digest: str) -> str:
        """The text with that hash, or a line that says that it is not to be had."""
        found = self._texts.get(digest)
        if found is None:
            at = self._at.get(digest)
            if at is None:
                return f"[text {digest} is missing from this trace]"
            try:
                record = _decoder.decode(self.line(at))
            except (*_UNREADABLE, OSError):
                record = None
            if not isinstance(record, Text):
                return f"[text {digest} cannot be read: its line in this trace is damaged]"
            found = self._texts[digest] = record.text
        return found

    def resolved(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """The attributes with every reference to a text replaced by the text."""
        return {name: self._resolved(value) for name, value in attrs.items()}

    def _resolved(self, value: Any) -> Any:
        if isinstance(value, dict):
            digest = value.get("$text")
            if isinstance(digest, str) and "chars" in value:
                return self.text(digest)
            return self.resolved(value)
        if isinstance(value, list):
            return [self._resolved(each) for each in value]
        return value


class StoredEvents(Sequence[Event]):
    """The events of a file, each read when it is looked at, and those that came after loading."""

    def __init__(self, texts: StoredTexts) -> None:
        self._texts = texts
        self._at = array("Q")
        self._new: list[Event] = []
        self.add = self._at.append
        """One more event of the file stands on the line that begins there."""

    def append(self, event: Event) -> None:
        """One more event, which is not in the file."""
        self._new.append(event)

    def __len__(self) -> int:
        return len(self._at) + len(self._new)

    @overload
    def __getitem__(self, index: int) -> Event: ...
    @overload
    def __getitem__(self, index: slice) -> list[Event]: ...
    def __getitem__(self, index: int | slice) -> Event | list[Event]:
        numbers = range(len(self))[index]
        if isinstance(numbers, range):
            return [self._event(number) for number in numbers]
        return self._event(numbers)

    def __iter__(self) -> Iterator[Event]:
        number = 0
        while number < len(self):  # more may come meanwhile
            yield self._event(number)
            number += 1

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence) or len(self) != len(other):
            return NotImplemented if not isinstance(other, Sequence) else False
        return all(mine == theirs for mine, theirs in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def _event(self, number: int) -> Event:
        if number >= len(self._at):
            return self._new[number - len(self._at)]
        line = self._texts.line(self._at[number])
        event = _decoder.decode(line)
        assert not isinstance(event, Header | Text), "only events are added"
        if _REFERENCE in line:
            event = msgspec.structs.replace(event, attrs=self._texts.resolved(event.attrs))
        return event


class _Reader:
    """One reading of one file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._texts = StoredTexts(path)
        self._lines = 0
        self._damaged: list[str] = []
        self._left_out = 0
        self._repeated = 0

    def read(self) -> Trace:
        """The trace, with what was found wrong in its notes."""
        header, notes = self._header()
        collects = gc.isenabled()
        gc.disable()  # a million records are no garbage: looking through them takes long
        try:
            trace = self._fold(header, self._records())
            if trace is None:
                trace = self._fold(header, self._sorted())
                assert trace is not None
                notes.append("its lines were out of order: they were put in order of time")
        finally:
            if collects:
                gc.enable()
        trace.tree.close()
        notes += self._damaged
        if self._left_out > len(self._damaged):
            notes.append(f"{self._left_out - len(self._damaged):,} more lines were left out")
        if self._repeated:
            notes.append(f"{self._repeated:,} repeated lines were left out")
        trace.notes.extend(notes)
        return trace

    def _header(self) -> tuple[Header, list[str]]:
        """The header, wherever it is, and what is to be noted about it."""
        first = self._texts.line(0)
        if first.startswith(_GZIP):
            raise TraceError(f"{self._path} is gzipped: unpack it first, with gunzip")
        header, notes = _header_on(first), []
        if header is None:
            header = self._late_header()
            notes = ["its header was not on its first line"]
        if header is None:
            why = "it has no trace header" if first else "it is empty"
            raise TraceError(f"{self._path} is not a trace: {why}")
        if header.format > FORMAT_VERSION:
            raise TraceError(
                f"{self._path} has trace format {header.format}, this version reads up to "
                f"{FORMAT_VERSION}: upgrade rlm_notebook"
            )
        return header, notes

    def _late_header(self) -> Header | None:
        for _, block in self._blocks():
            for line in block.split(b"\n") if b'"header"' in block else ():
                if b'"header"' in line and (header := _header_on(line)) is not None:
                    return header
        return None

    def _blocks(self) -> Iterator[tuple[int, bytes]]:
        """Where each piece of the file begins, and the piece: some whole lines."""
        at, file = 0, self._texts.file
        file.seek(0)
        self._damaged, self._left_out, self._lines = [], 0, 0
        while block := file.read(_BLOCK):
            if block[-1] != _NEWLINE:
                block += file.readline(LONGEST_LINE)
            begin, rest = at, b""
            at += len(block)
            if block[-1] != _NEWLINE:
                block = block[: block.rfind(b"\n") + 1]
                while (rest := file.readline(_BLOCK)) and rest[-1] != _NEWLINE:
                    at += len(rest)
                at += len(rest)
            yield begin, block
            if rest:
                self._lines += 1
                self._leave_out(self._lines, "it is too long")

    def _records(self) -> Iterator[tuple[int, bytes, Event]]:
        """The events as they come: where each stands, its line, and what that holds."""
        texts = self._texts
        for at, block in self._blocks():
            lines = block.split(b"\n")
            lines.pop()
            records: Sequence[Line | None]
            try:
                records = _decoder.decode_lines(block)
            except _UNREADABLE:
                records = ()
            if len(records) != len(lines):
                records = [self._record(number, line) for number, line in enumerate(lines, 1)]
            self._lines += len(lines)
            for line, record in zip(lines, records, strict=True):
                if type(record) is Text:
                    texts.add(record.hash, at)
                elif record is not None and type(record) is not Header:
                    yield at, line, record
                at += len(line) + 1

    def _record(self, number: int, line: bytes) -> Line | None:
        try:
            return _decoder.decode(line)
        except _UNREADABLE as error:
            if line.strip():
                self._leave_out(self._lines + number, error)
            return None

    def _leave_out(self, number: int, why: object) -> None:
        self._left_out += 1
        if len(self._damaged) < MOST_NOTES:
            self._damaged.append(f"line {number} was left out: {why}")

    def _sorted(self) -> Iterator[tuple[int, bytes, Event]]:
        """The same in order of time. What happened at one time is put in the order of a life."""
        keys = [
            (event.t, _ORDER.get(type(event), len(_ORDER)), event.id, at)
            for at, _, event in self._records()
        ]
        keys.sort()
        for *_, at in keys:
            line = self._texts.line(at)
            record = _decoder.decode(line)
            assert not isinstance(record, Header | Text), "only events are sorted"
            yield at, line, record

    def _fold(self, header: Header, records: Iterator[tuple[int, bytes, Event]]) -> Trace | None:
        """The trace, or None as soon as a record is earlier than the one before it."""
        texts, events = self._texts, StoredEvents(self._texts)
        trace = Trace(header, path=self._path, events=events)
        tree, add, previous = trace.tree, events.add, b""
        streamed = self._path.stat().st_size + STREAMED_BYTES
        self._repeated = 0
        for at, line, record in records:
            if record.t < tree.time:
                return None
            if line == previous:
                self._repeated += 1
                continue
            previous = line
            refers = _REFERENCE in line
            if type(record) is SpanText:
                attrs = texts.resolved(record.attrs) if refers else record.attrs
                streamed -= len(text_of(attrs.get("text")))
                if streamed < 0:
                    continue
                record, refers = msgspec.structs.replace(record, attrs=attrs), False
            span = tree.apply(record)
            if span is not None:
                add(at)
                if refers:
                    span.texts = texts
        return trace


def _header_on(line: bytes) -> Header | None:
    try:
        record = _decoder.decode(line)
    except _UNREADABLE:
        return None
    return record if isinstance(record, Header) else None
