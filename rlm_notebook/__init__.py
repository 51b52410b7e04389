"""Run, see, debug and teach Recursive Language Models (RLMs) inside Jupyter.

``%load_ext rlm_notebook`` in a notebook, or ``from rlm_notebook import RLM`` anywhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

    from rlm_notebook.errors import RLMError
    from rlm_notebook.result import Result
    from rlm_notebook.rlm import RLM
    from rlm_notebook.sessions import Session
    from rlm_notebook.trace.trace import Trace

__version__ = "0.1.0"
__all__ = ["RLM", "RLMError", "Result", "Session", "Trace", "__version__", "load_ipython_extension"]

_HOMES = {
    "RLM": "rlm_notebook.rlm",
    "RLMError": "rlm_notebook.errors",
    "Result": "rlm_notebook.result",
    "Session": "rlm_notebook.sessions",
    "Trace": "rlm_notebook.trace.trace",
}


def load_ipython_extension(ipython: InteractiveShell) -> None:
    """What ``%load_ext rlm_notebook`` calls."""
    from rlm_notebook.magics import load

    load(ipython)


def unload_ipython_extension(ipython: InteractiveShell) -> None:
    """What ``%unload_ext rlm_notebook`` calls."""
    from rlm_notebook.magics import unload

    unload(ipython)


def __getattr__(name: str) -> Any:
    # Names are looked up at their first use, so that importing the package costs next to nothing.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
