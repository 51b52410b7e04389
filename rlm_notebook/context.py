"""The context of a run: what may be one, how it is described to the model, how files become one."""

from __future__ import annotations

import glob
import itertools
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rlm_notebook.errors import ContextError

SUPPORTED = "str, list (of str, of chat messages, of plain data), dict of plain data, file paths"
_PLAIN = (str, int, float, bool, type(None))
_KEYS_SHOWN = 5


def check_context(value: Any) -> None:
    """Refuse what the REPL process could not be given.

    Raises
    ------
    ContextError
        The value, or something in it, is not plain data.
    """
    if isinstance(value, str):
        return
    if not isinstance(value, list | tuple | dict):
        raise ContextError(f"a context cannot be of type {_name(value)}; supported: {SUPPORTED}")
    seen: set[int] = set()
    stack: list[Any] = [value]
    while stack:
        item = stack.pop()
        if type(item) in _PLAIN:
            continue
        if type(item) not in (list, tuple, dict):
            raise ContextError(
                f"the context holds a value of type {_name(item)}; supported: {SUPPORTED}"
            )
        if id(item) in seen:
            continue
        seen.add(id(item))
        stack.extend(item if not isinstance(item, dict) else itertools.chain(item, item.values()))


def describe(value: Any) -> str:
    """Type, size and structure in one line; keys are named, content never."""
    if isinstance(value, str):
        return f"a str of {_count(value, 'character')} in {_count(value.splitlines(), 'line')}"
    if is_messages(value):
        total = sum(len(str(message.get("content") or "")) for message in value)
        return f"a list of {_count(value, 'chat message')} (role, content), {total:,} characters"
    if isinstance(value, Mapping):
        shown = ", ".join(_short(key) for key in itertools.islice(value, _KEYS_SHOWN))
        more = ", ..." if len(value) > _KEYS_SHOWN else ""
        return f"a dict of {_count(value, 'key')} ({shown}{more}); values: {_items(value.values())}"
    return f"a {type(value).__name__} of {_count(value, 'item')}: {_items(value)}"


def is_messages(value: Any) -> bool:
    """Whether the value is a list of chat messages (dicts with ``role`` and ``content``)."""
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(item, dict) and "role" in item and "content" in item for item in value)
    )


def read_files(pattern: str, *, root: Path | None = None) -> str | dict[str, str]:
    """One file as a str, or all files that match a glob as ``{path: text}``.

    Parameters
    ----------
    pattern
        A path or a glob; ``**`` matches folders at any depth, ``~`` is the home folder.

    Raises
    ------
    ContextError
        Nothing matches, or a file is not UTF-8 text.
    """
    path = Path(pattern).expanduser()
    base = root or Path.cwd()
    if (base / path).is_file():
        return _read(base / path)
    found = sorted(glob.glob(os.fspath(path), root_dir=base, recursive=True))
    files = [name for name in found if (base / name).is_file()]
    if not files:
        raise ContextError(f"no variable, file or glob {pattern!r} (searched in {base})")
    return {name: _read(base / name) for name in files}


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise ContextError(
            f"{path} is not UTF-8 text: convert it, or read it yourself into a str"
        ) from None
    except OSError as error:
        raise ContextError(f"cannot read {path}: {error.strerror or error}") from None


def _items(values: Iterable[Any]) -> str:
    types: dict[str, int] = {}
    sizes: list[int] = []
    for value in values:
        types[type(value).__name__] = types.get(type(value).__name__, 0) + 1
        if isinstance(value, str):
            sizes.append(len(value))
    if not types:
        return "none"
    kinds = " and ".join(
        name if len(types) == 1 else f"{count:,} {name}" for name, count in types.items()
    )
    if not sizes:
        return kinds
    if min(sizes) == max(sizes):
        return f"{kinds} of {sizes[0]:,} characters, {sum(sizes):,} in all"
    return f"{kinds} of {min(sizes):,} to {max(sizes):,} characters, {sum(sizes):,} in all"


def _count(values: Any, noun: str) -> str:
    size = len(values)
    return f"{size:,} {noun}" + ("" if size == 1 else "s")


def _name(value: Any) -> str:
    kind = type(value)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"


def _short(key: Any) -> str:
    text = repr(key)
    return text if len(text) <= 60 else text[:57] + "..."
