"""The context of a run: what may be one, how it is described to the model, how files become one."""

from __future__ import annotations

import codecs
import glob
import io
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlm_notebook.errors import ContextError
from rlm_notebook.repl import parcel

SUPPORTED = (
    "str, list (of str, of chat messages, of plain data), dict of plain data, bytes, file paths, "
    "tables of pandas, polars and pyarrow, numpy arrays"
)
_PLAIN = (str, int, float, bool, type(None), bytes)
_TABLES = {
    "pandas": ("DataFrame", "Series"),
    "polars": ("DataFrame", "Series"),
    "pyarrow": ("Table",),
    "numpy": ("ndarray",),
}
"""By package; known by name, so that none of them is imported."""
_KEYS_SHOWN = 5
_COLUMNS_SHOWN = 20
_LOOKED_AT = 200_000
"""Bytes of a file that are looked at to find its encoding."""
_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_NO_TEXT = {
    b"%PDF": "a PDF",
    b"PK\x03\x04": "a ZIP archive or an office document",
    b"\x89PNG": "an image",
    b"\xff\xd8\xff": "an image",
    b"GIF8": "an image",
    b"\x1f\x8b": "compressed",
    b"\x7fELF": "a program",
}


@dataclass(frozen=True)
class Context:
    """A context that has been looked through: it can be given to a REPL."""

    value: Any
    description: str
    """What the model is told: type, size and structure in one line."""


def taken(value: Any) -> Context:
    """A context from what the user gives: opened, checked and described.

    Takes its time with a large one; other threads run in between.

    Raises
    ------
    ContextError
        It is of a kind that cannot be used, or a file cannot be read.
    """
    if isinstance(value, Context):
        return value
    value = opened(value)
    check_context(value)
    return Context(value, describe(value))


def check_context(value: Any) -> None:
    """Refuse what the REPL process could not be given.

    Raises
    ------
    ContextError
        The value, or something in it, is not plain data.
    """
    if isinstance(value, str | bytes) or is_table(value):
        return
    if not isinstance(value, list | tuple | dict):
        raise ContextError(
            f"a context cannot be of type {_name(value)}{_advice(value)}; supported: {SUPPORTED}"
        )
    seen: set[int] = set()
    stack: list[Any] = [value]
    while stack:
        item = stack.pop()
        if type(item) in _PLAIN or is_table(item):
            continue
        if type(item) not in (list, tuple, dict):
            raise ContextError(
                f"the context holds a value of type {_name(item)}{_advice(item)}; "
                f"supported: {SUPPORTED}"
            )
        if id(item) in seen:
            continue
        seen.add(id(item))
        stack.extend(item if not isinstance(item, dict) else itertools.chain(item, item.values()))


def opened(value: Any) -> Any:
    """The value, or the text of the file (or the files of the glob) that it is a path of.

    Raises
    ------
    ContextError
        There is no such file, or it holds no text.
    """
    return read_files(os.fspath(value)) if isinstance(value, os.PathLike) else value


def find_context(expression: str, namespace: dict[str, Any]) -> Callable[[], Any]:
    """The value of an expression of the user's namespace, or the text of a file or a glob.

    Several names, as in ``a,b``, are a dict of their values.

    Returns
    -------
    Callable
        Gives the context; no code of the user runs in it, so any thread may call it. It raises
        ContextError if the expression is neither.
    """
    try:
        value = eval(compile(expression, "--context", "eval"), namespace)
    except (SyntaxError, NameError, ValueError):
        return lambda: read_files(expression)
    except Exception as error:
        message = f"--context {expression}: {type(error).__name__}: {error}"

        def file() -> Any:
            try:
                return read_files(expression)
            except ContextError:
                raise ContextError(message) from None

        return file
    if isinstance(value, tuple) and "," in expression:
        names = [each.strip() for each in expression.strip("() ").split(",") if each.strip()]
        if all(map(str.isidentifier, names)) and len(names) == len(value):
            return lambda: {name: opened(each) for name, each in zip(names, value, strict=True)}
    return lambda: opened(value)


def is_table(value: Any) -> bool:
    """Whether the value is a table or an array of plain values, of one of the known packages."""
    kind = type(value)
    package = kind.__module__.partition(".")[0]
    if kind.__name__ not in _TABLES.get(package, ()):
        return False
    return not (package == "numpy" and value.dtype.hasobject)


def describe(value: Any) -> str:
    """Type, size and structure in one line; keys and columns are named, content never."""
    if is_table(value):
        return _describe_table(value)
    if isinstance(value, bytes):
        return f"bytes: {_count(value, 'byte')}"
    if isinstance(value, str):
        return f"a str of {_count(value, 'character')} in {_counted(_lines(value), 'line')}"
    if is_messages(value):
        total = sum(len(str(message.get("content") or "")) for message in value)
        return f"a list of {_count(value, 'chat message')} (role, content), {total:,} characters"
    if isinstance(value, Mapping) and len(value) <= _KEYS_SHOWN and not _is_flat(value.values()):
        each = "; ".join(f"{_short(key)}: {_describe_item(item)}" for key, item in value.items())
        return f"a dict of {_count(value, 'key')}: {each}"
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
    """The text of a file, in whatever encoding it is."""
    try:
        with path.open("rb") as file:
            beginning = file.read(_LOOKED_AT)
            _check_text(path, beginning)
            marked = next((name for mark, name in _MARKS if beginning.startswith(mark)), None)
            for encoding in (marked or "utf-8", None if marked else _guessed(beginning)):
                file.seek(0)
                try:
                    if encoding is not None:
                        text = parcel.read_text(file, encoding, universal_newlines=True)
                        if "\0" not in text[:_LOOKED_AT]:
                            return text
                except UnicodeDecodeError:
                    continue
    except OSError as error:
        raise ContextError(f"cannot read {path}: {error.strerror or error}") from None
    raise ContextError(f"{path} is not text: read it yourself, and give a str or bytes")


def _check_text(path: Path, beginning: bytes) -> None:
    for mark, kind in _NO_TEXT.items():
        if beginning.startswith(mark):
            raise ContextError(f"{path} is {kind}, not text: take its text out, and give that")


def _guessed(beginning: bytes) -> str | None:
    """The encoding of bytes that do not name it; None if they seem to be no text."""
    if b"\0" in beginning:
        return None
    from charset_normalizer import from_bytes

    found = from_bytes(beginning).best()
    return found.encoding if found is not None else None


def _is_flat(values: Iterable[Any]) -> bool:
    """Whether all are of one simple type, so that they are described together."""
    types = {type(value) for value in values}
    return len(types) <= 1 and types <= set(_PLAIN)


def _describe_item(value: Any) -> str:
    whole = isinstance(value, str | bytes | list | tuple | dict) or is_table(value)
    name = type(value).__name__
    return describe(value) if whole else f"{'an' if name[0] in 'aeiou' else 'a'} {name}"


def _describe_table(value: Any) -> str:
    package = type(value).__module__.partition(".")[0]
    name = f"{package} {type(value).__name__}"
    if package == "numpy":
        return f"a {name} of shape {value.shape} and dtype {value.dtype}"
    if type(value).__name__ == "Series":
        return f"a {name} of {_count(value, 'row')} of {value.dtype}"
    if package == "pandas":
        columns = list(zip(map(str, value.columns), value.dtypes, strict=True))
    elif package == "polars":
        columns = list(value.schema.items())
    else:
        columns = [(field.name, field.type) for field in value.schema]
    shown = ", ".join(f"{column}: {kind}" for column, kind in columns[:_COLUMNS_SHOWN])
    more = ", ..." if len(columns) > _COLUMNS_SHOWN else ""
    rows = f"{value.shape[0]:,} row" + ("" if value.shape[0] == 1 else "s")
    return f"a {name} of {rows} and {_count(columns, 'column')} ({shown}{more})"


def _advice(value: Any) -> str:
    if isinstance(value, io.IOBase):
        return " (an open file: give its path, or its text)"
    if isinstance(value, Iterator):
        return " (it can be read only once: give list(...) of it)"
    if isinstance(value, set | frozenset):
        return " (give sorted(...) of it)"
    return ""


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


def _lines(text: str) -> int:
    """How many lines a text has. By pieces: a search does not let other threads run."""
    ends = sum(
        text.count("\n", start, start + parcel.PIECE) for start in range(0, len(text), parcel.PIECE)
    )
    return ends + (bool(text) and not text.endswith("\n"))


def _count(values: Any, noun: str) -> str:
    return _counted(len(values), noun)


def _counted(size: int, noun: str) -> str:
    return f"{size:,} {noun}" + ("" if size == 1 else "s")


def _name(value: Any) -> str:
    kind = type(value)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"


def _short(key: Any) -> str:
    text = repr(key)
    return text if len(text) <= 60 else text[:57] + "..."
