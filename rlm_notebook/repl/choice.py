"""REPLs by the name of their kind."""

from __future__ import annotations

from rlm_notebook.errors import UsageError
from rlm_notebook.repl.protocol import REPL, Limits
from rlm_notebook.repl.subprocess import SubprocessREPL


def make_repl(kind: str, limits: Limits, is_child: bool = False) -> REPL:
    """A REPL that is not started yet.

    Raises
    ------
    UsageError
        Its package is not installed, or there is no such kind.
    """
    if kind == "subprocess":
        return SubprocessREPL(limits)
    if kind == "kernel":
        from rlm_notebook.repl.kernel import KernelREPL

        return KernelREPL(limits, is_child=is_child)
    if kind == "monty":
        from rlm_notebook.repl.monty import MontyREPL

        return MontyREPL(limits)
    raise UsageError(f"no REPL {kind!r}; there are: subprocess, kernel, monty")


def check_repl(kind: str, auto_batch: bool) -> None:
    """Raise UsageError if there can be no such REPL."""
    if kind == "monty":
        try:
            import pydantic_monty  # noqa: F401
        except ImportError:
            raise UsageError(
                "--repl monty needs a package more: pip install 'rlm-notebook[sandbox]'"
            ) from None
        if auto_batch:
            raise UsageError("--auto-batch works with --repl subprocess and kernel, not with monty")
