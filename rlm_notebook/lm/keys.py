"""Where API keys come from: the environment, a ``.env`` file, the system's keyring.

Keys are only ever read into the object that sends them: never into the environment, a setting or
a trace.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

KEYRING_SERVICE = "rlm_notebook"
"""``keyring set rlm_notebook OPENAI_API_KEY``"""
_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSW|CREDENTIAL", re.IGNORECASE)
_SHORTEST_SECRET = 8
_REFERENCE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")


def find_variable(name: str) -> str | None:
    """The value of a variable in the environment, or in the nearest ``.env`` file upwards."""
    value = os.environ.get(name)
    if value is not None and value.strip():
        return value.strip()
    from dotenv import dotenv_values, find_dotenv

    path = find_dotenv(usecwd=True)
    try:
        value = dotenv_values(path, interpolate=False).get(name) if path else None
    except (OSError, UnicodeDecodeError):
        return None  # a file that cannot be read holds nothing for us
    return value.strip() if value is not None and value.strip() else None


def find_key(name: str) -> str:
    """The key that a variable names; also looked up in the keyring. Empty if there is none."""
    return find_variable(name) or _from_keyring(name) or ""


def secrets_of(environ: Mapping[str, str]) -> dict[str, str]:
    """Values of variables whose names say that they are secret -> the names."""
    return {
        value: name
        for name, value in environ.items()
        if _SECRET.search(name) and len(value) >= _SHORTEST_SECRET
    }


def expanded(text: str) -> str | None:
    """A text with ``$NAME`` and ``${NAME}`` replaced by keys; None if one of them is not there."""
    missing = False

    def value(reference: re.Match[str]) -> str:
        nonlocal missing
        found = find_key(reference[1] or reference[2])
        missing = missing or not found
        return found

    result = _REFERENCE.sub(value, text)
    return None if missing else result


def _from_keyring(name: str) -> str | None:
    try:
        import keyring
    except ImportError:
        return None  # the extra is not installed
    try:
        value = keyring.get_password(KEYRING_SERVICE, name)
    except Exception:  # no backend, locked, no session bus: each backend has errors of its own
        return None
    return value.strip() if value else None
