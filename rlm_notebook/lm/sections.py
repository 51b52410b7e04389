"""The parts of a text: units of about a sentence or a line, headings, tables."""

from __future__ import annotations

import csv
import re
from bisect import bisect_right
from functools import cached_property

LONG = 400
"""Characters above which a line is searched in pieces: a paragraph, or JSON without line ends."""
_PIECE = re.compile(r".{1,300}(?:[.!?;]\s+|\},?\s*)|.{1,300}(?:[\s,]|$)|.{1,300}")
_HEADING = re.compile(
    r"^(?:(?:#|//)? ?(?:[Ff]ile|[Mm]odule|[Dd]ocument): ?(.{1,200})|"
    r"#{1,6} (.{1,120})|\[([\w .:-]{1,60})\]|((?:Chapter|Section|Part|Note|Item|Page|Entry) "
    r"[\w.]{1,12}))",
    re.MULTILINE,
)
_OWN_HEADING = re.compile(r"^=== (.{1,200}?) ===$", re.MULTILINE)


class Sections:
    """A text that can be asked for its units, and for what stands above one."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._tops: dict[tuple[int, str], int] = {}

    @cached_property
    def starts(self) -> list[int]:
        """Where the units begin."""
        starts: list[int] = []
        start = 0
        while start <= len(self.text):
            end = self.text.find("\n", start)
            end = len(self.text) if end < 0 else end
            if end - start > LONG:
                starts += [piece.start() for piece in _PIECE.finditer(self.text, start, end)]
            else:
                starts.append(start)
            start = end + 1
        return starts

    def unit_at(self, position: int) -> int:
        """The number of the unit a position lies in."""
        return bisect_right(self.starts, position) - 1

    def unit(self, number: int) -> str:
        """The text of a unit."""
        following = self.starts[number + 1] if number + 1 < len(self.starts) else len(self.text)
        return self.text[self.starts[number] : following].strip()

    def heading(self, position: int) -> str:
        """The nearest heading at or before a position, as a name; '' if there is none."""
        number = bisect_right(self._heading_starts, self._line_end(position)) - 1
        return self._heading_names[number] if number >= 0 else ""

    def is_heading(self, number: int) -> bool:
        """Whether a unit is nothing but a heading."""
        return self._headings.fullmatch(self.unit(number)) is not None

    def header(self, number: int) -> int | None:
        """The unit with the column names of the table that a unit is a row of."""
        split = separator(self.unit(number))
        if split is None:
            return None
        mark, count = split
        top = number
        while top and self.unit(top - 1).count(mark) == count:
            top = self._tops.get((top - 1, mark), top - 1)
        self._tops.update(((row, mark), top) for row in range(top, number + 1))
        names = cells(self.unit(top), mark)
        plain = all(len(name.split()) <= 4 and not name.isdigit() for name in names)
        return top if top < number and plain else None

    @cached_property
    def _headings(self) -> re.Pattern[str]:
        # where the root has put headings, "# x" is a comment and "[x]" a list
        return _OWN_HEADING if _OWN_HEADING.search(self.text) else _HEADING

    @cached_property
    def _found_headings(self) -> list[re.Match[str]]:
        return list(self._headings.finditer(self.text))

    @cached_property
    def _heading_starts(self) -> list[int]:
        return [found.start() for found in self._found_headings]

    @cached_property
    def _heading_names(self) -> list[str]:
        return [
            next(group for group in found.groups() if group).strip().rstrip(":.")
            for found in self._found_headings
        ]

    def _line_end(self, position: int) -> int:
        end = self.text.find("\n", position)
        return len(self.text) if end < 0 else end


def without_headings(text: str) -> str:
    """The text without the headings that the root has put in."""
    return _OWN_HEADING.sub("", text)


def separator(row: str) -> tuple[str, int] | None:
    """The mark between the cells of a row, and how often it stands there."""
    if re.search(r"[{(]|[\"']\s*:", row):
        return None  # source or JSON
    mark = next((mark for mark in ("|", "\t", ";", ",") if mark in row), None)
    if mark is None or (row.count(mark) == 1 and row.endswith(mark)):
        return None
    return mark, row.count(mark)


def cells(row: str, mark: str) -> list[str]:
    """The cells of a row of a table."""
    if mark == "|":
        row = row.strip().strip("|")
    try:
        return [cell.strip() for cell in next(csv.reader([row], delimiter=mark), [])]
    except csv.Error:
        return row.split(mark)
