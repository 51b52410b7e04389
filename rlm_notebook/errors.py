"""The errors a user can meet. Each message says what happened, where, and what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rlm_notebook.result import Result


class RLMError(Exception):
    """Base class of every error raised by this package.

    In a notebook it is shown as its one line, without a traceback.
    """

    def _render_traceback_(self) -> list[str]:
        """What IPython shows in place of a traceback (IPython looks for this name)."""
        return [f"\x1b[31m{type(self).__name__}\x1b[39m: {self}"]


class UsageError(RLMError):
    """An option, a name or a value that was given is not right."""


class ContextError(RLMError):
    """The context is of a kind that cannot be used, or cannot be read."""


class ModelError(RLMError):
    """A model name, a provider or its settings are not right (missing key, unknown name)."""


class TraceError(RLMError):
    """A trace cannot be written or read."""


class TraceExistsError(TraceError):
    """The file of a new trace exists already."""


class REPLError(RLMError):
    """The REPL could not be started, or broke its protocol."""


class RunError(RLMError):
    """A run ended without a result, for instance because the root model could not be reached.

    Attributes
    ----------
    result
        What there is: the trace up to the failure, the usage, a partial answer if any.
    """

    def __init__(self, message: str, result: Result) -> None:
        super().__init__(message)
        self.result = result


class LMError(RLMError):
    """One LM call failed.

    Attributes
    ----------
    type
        A short stable name: ``connect`` (not sent), ``tls``, ``disconnected``, ``timeout``, ``http``,
        ``quota``, ``protocol``, ``no_stream``, ``simulated``, ``not_sent``, ``limit``, or the name
        of an exception.
    status
        HTTP status where there was one.
    retry_after
        Seconds after which the server asks to try again, where it says so.
    hopeless
        Whether every further call to the same model would fail in the same way.
    """

    def __init__(
        self,
        message: str,
        *,
        type: str,
        status: int | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.type = type
        self.status = status
        self.retry_after = retry_after
        self.hopeless = type in ("quota", "tls") or (
            type == "http" and status in (401, 402, 403, 404)
        )

    @property
    def transient(self) -> bool:
        """Whether the same call may succeed a little later."""
        if self.type in ("connect", "disconnected", "no_stream"):
            return True
        status = self.status or 0
        return self.type == "http" and (status in (408, 409, 429) or 500 <= status < 600)
