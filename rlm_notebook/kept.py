"""Contexts kept beside the traces, so that a run can be replayed, resumed and forked later.

A context is stored once, in a file that has its digest as its name; runs that ask about the same
one share it. It is read as data only.
"""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from rlm_notebook.errors import ContextError
from rlm_notebook.repl.parcel import pieces

FOLDER = "contexts"
"""Beside the trace files."""
_DIGEST = re.compile(r"[0-9a-f]{32}")
_TEXT, _DATA = b"t", b"m"


def keep(value: Any, folder: Path, most: float) -> str | None:
    """Store a context under its digest; return that.

    Parameters
    ----------
    folder
        The one of the traces.
    most
        MiB; larger ones are not stored.

    Returns
    -------
    str or None
        None if it is too large, or is no plain data (tables, tuples), or cannot be written.
    """
    if not _fits(value, int(most * (1 << 20))):
        return None
    try:
        found = digest(value)
        path = folder / FOLDER / found
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
                try:
                    file.writelines(_encoded(value))
                except BaseException:
                    os.unlink(file.name)
                    raise
            os.replace(file.name, path)
    except (OSError, ValueError, TypeError, OverflowError, RecursionError):
        return None
    return found


def kept(found: Any, folder: Path) -> Any:
    """The context that was stored under a digest.

    Raises
    ------
    ContextError
        There is none, or it is not what it was.
    """
    if not isinstance(found, str) or not _DIGEST.fullmatch(found):
        raise ContextError("the context of this run was not kept: give it with context=...")
    path = folder / FOLDER / found
    try:
        data = path.read_bytes()
    except OSError:
        raise ContextError(
            f"the context of this run is not in {path.parent}: give it with context=..."
        ) from None
    if hashlib.blake2b(data, digest_size=16).hexdigest() != found:
        raise ContextError(f"{path} was changed: give the context with context=...")
    try:
        return data[1:].decode() if data[:1] == _TEXT else msgspec.msgpack.decode(data[1:])
    except (ValueError, RecursionError):  # written by someone else
        raise ContextError(f"{path} holds no context: give it with context=...") from None


def digest(value: Any) -> str:
    """BLAKE2b of a context.

    Raises
    ------
    ValueError, TypeError, OverflowError, RecursionError
        It is no plain data.
    """
    found = hashlib.blake2b(digest_size=16)
    for piece in _encoded(value):
        found.update(piece)
    return found.hexdigest()


def _encoded(value: Any) -> Iterator[bytes]:
    if isinstance(value, str):
        yield _TEXT
        yield from pieces(value)
    else:
        yield _DATA + msgspec.msgpack.encode(value)


def _fits(value: Any, most: int) -> bool:
    """Whether the value is plain data of at most so many characters."""
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, str | bytes):
            most -= len(item)
        elif type(item) is dict:
            stack.extend(item)
            stack.extend(item.values())
        elif type(item) is list:
            stack.extend(item)
        elif not isinstance(item, int | float | None):
            return False
        most -= 1
        if most < 0:
            return False
    return True
