"""Values as files: how a context goes to the REPL process without a second copy in memory.

A text is written piece by piece. Anything else is pickled into the file; texts in it that are
not ASCII go into a second file beside it, because pickling those would leave a UTF-8 copy in
each of them. Standard library only: the REPL process imports this file by its path.
"""

from __future__ import annotations

import codecs
import io
import os
import pickle
from collections.abc import Iterator
from typing import Any

PIECE = 1 << 20
"""Characters, or bytes, that are worked on at once; other threads run in between."""
_TEXT, _PICKLED = b"t", b"p"
_TEXTS = ".texts"


def write(value: Any, path: str) -> None:
    """Write a value to a new file that its owner alone can read."""
    with _new(path) as file:
        if isinstance(value, str):
            file.write(_TEXT)
            for piece in pieces(value):
                file.write(piece)
            return
        file.write(_PICKLED)
        with _new(path + _TEXTS) as texts:
            _Pickler(file, texts).dump(value)


def read(path: str) -> Any:
    """The value of a file that :func:`write` made; the file is removed."""
    with open(path, "rb") as file:
        os.unlink(path)
        if file.read(1) == _TEXT:
            return read_text(file, "utf-8")
        with open(path + _TEXTS, "rb") as texts:
            os.unlink(path + _TEXTS)
            return _Unpickler(file, texts).load()


def read_text(file: Any, encoding: str, *, universal_newlines: bool = False) -> str:
    """The rest of a binary file as text, with one copy of it in memory.

    Raises
    ------
    UnicodeDecodeError
        It is in another encoding.
    """
    decoder: Any = codecs.getincrementaldecoder(encoding)()
    if universal_newlines:
        decoder = io.IncrementalNewlineDecoder(decoder, translate=True)
    text: str = ""
    while data := file.read(PIECE):
        text += decoder.decode(data)  # grows in place: nothing else holds it
    text += decoder.decode(b"", True)
    return text


def _new(path: str) -> Any:
    return open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")


def pieces(text: str) -> Iterator[bytes]:
    """The text as UTF-8, piece by piece."""
    for start in range(0, len(text), PIECE):
        piece = text[start : start + PIECE]
        try:
            yield piece.encode()
        except UnicodeEncodeError:  # a lone surrogate becomes U+FFFD
            yield piece.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()


class _Pickler(pickle.Pickler):
    def __init__(self, file: Any, texts: Any) -> None:
        super().__init__(file, protocol=5)
        self._texts = texts
        self._known: dict[int, tuple[int, str]] = {}
        """By id: number, and the text itself, so that the id stays its own."""

    def persistent_id(self, value: Any) -> int | None:
        """Non-ASCII texts: the number of a known one, -1 - its bytes for a new one."""
        if type(value) is not str or value.isascii():
            return None
        known = self._known.get(id(value))
        if known is not None:
            return known[0]
        self._known[id(value)] = (len(self._known), value)
        size: int = sum(self._texts.write(piece) for piece in pieces(value))
        return -1 - size


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: Any, texts: Any) -> None:
        super().__init__(file)
        self._texts = texts
        self._known: list[str] = []

    def persistent_load(self, pid: int) -> str:
        if pid < 0:
            self._known.append(self._texts.read(-1 - pid).decode())
        return self._known[pid if pid >= 0 else -1]
