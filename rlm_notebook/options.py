"""The line of a magic: split into words, read as options. Pure, but for argparse's parser."""

from __future__ import annotations

import argparse
import difflib
from typing import Any, NoReturn

from rlm_notebook.errors import UsageError
from rlm_notebook.settings import Field, convert, fields

_CLOSING = {"(": ")", "[": "]", "{": "}"}


class OptionParser(argparse.ArgumentParser):
    """An argument parser that raises UsageError with one line that says what is right."""

    def error(self, message: str) -> NoReturn:
        """Raise instead of exiting."""
        words = message.split()
        options = [option for action in self._actions for option in action.option_strings]
        if message.startswith("unrecognized arguments"):
            unknown = next((word for word in words[2:] if word.startswith("--")), words[2])
            near = difflib.get_close_matches(unknown.partition("=")[0], options, n=1)
            hint = f"did you mean {near[0]}?" if near else f"there are: {', '.join(options)}"
            message = f"{self.prog}: unknown option {unknown}; {hint}"
        else:
            message = f"{self.prog}: {message}"
        raise UsageError(message)


def setting_options(parser: argparse.ArgumentParser) -> None:
    """Add one option for each setting."""
    group = parser.add_argument_group("settings")
    for field in fields():
        flag: dict[str, Any] = {"nargs": "?", "const": "true"} if field.default is False else {}
        metavar = _metavar(field)
        group.add_argument(field.option, metavar=metavar, help=_help(field), **flag)


def given_settings(arguments: argparse.Namespace) -> dict[str, Any]:
    """The settings that were given on the line, checked.

    Raises
    ------
    UsageError
        A value is not right.
    """
    return {
        field.name: convert(field.name, value)
        for field in fields()
        if (value := getattr(arguments, field.name, None)) is not None
    }


def split_line(line: str) -> list[str]:
    """Words of a magic's line. Quotes and brackets keep their spaces; outer quotes are removed.

    ``--context docs['a b'][: 3] --simulate "errors=0.1 seed=2"`` needs no escaping.

    Raises
    ------
    UsageError
        A quote or a bracket is not closed.
    """
    words: list[str] = []
    word = ""
    expected: list[str] = []  # closing quotes and brackets, innermost last
    for character in line:
        if expected and character == expected[-1]:
            expected.pop()
        elif expected and expected[-1] in "\"'":
            pass
        elif character in "\"'":
            expected.append(character)
        elif character in _CLOSING:
            expected.append(_CLOSING[character])
        elif character.isspace() and not expected:
            if word:
                words.append(_unquoted(word))
            word = ""
            continue
        word += character
    if expected:
        raise UsageError(f"the line has no closing {expected[-1]}: {line.strip()}")
    if word:
        words.append(_unquoted(word))
    return words


def _unquoted(word: str) -> str:
    name, equals, value = word.partition("=")
    if equals and name.startswith("--"):
        return f"{name}={_unquoted(value)}"
    if len(word) >= 2 and word[0] == word[-1] and word[0] in "\"'" and word[0] not in word[1:-1]:
        return word[1:-1]
    return word


def _metavar(field: Field) -> str:
    kind = str(field.type)
    if field.default is False:
        return "true|false"
    if "float" in kind:
        return "USD" if "USD" in field.help else "SECONDS"
    return "N" if "int" in kind else "TEXT"


def _help(field: Field) -> str:
    text = field.help.replace("%", "%%")
    return text if field.default is None or "default" in text else f"{text} [{field.default}]"
