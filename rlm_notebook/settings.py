"""What a user can set. One table: the magic's options, ``%rlm_config``, ``c.RLMSettings`` in an
IPython config file, the environment variables and the arguments of ``RLM`` are all read from it.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec

from rlm_notebook.errors import UsageError
from rlm_notebook.lm.provider_settings import (
    AtLeastOne,
    Positive,
    ProviderSettings,
    read_providers,
    recordable,
    settings_for,
)
from rlm_notebook.lm.transport import shown

ENV_PREFIX = "RLM_"
"""``RLM_MODEL``, ``RLM_MAX_DEPTH``..., one for each setting."""

NotNegative = Annotated[float, msgspec.Meta(ge=0)]
Hedge = Annotated[str, msgspec.Meta(pattern=r"^(p(?!0)\d{1,2}(\.\d+)?|\d+(\.\d*)?|\.\d+)$")]


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of one run. They go into the trace, so none of them is ever a secret."""

    model: Annotated[
        str,
        msgspec.Meta(
            description="root model as provider/model, for instance openai/gpt-5, or a variable "
            "that holds a model object; the default needs no key and no network"
        ),
    ] = "builtin/extractive"
    sub_model: Annotated[
        str | None,
        msgspec.Meta(description="model of llm_query and of child RLMs; default: the root model"),
    ] = None
    providers: Annotated[
        dict[str, ProviderSettings],
        msgspec.Meta(
            description="settings of providers and models, as JSON or a variable that holds a "
            'dict: {"openai": {"temperature": 0}, "mine": {"base_url": "http://..."}}; see '
            "rlm_notebook.lm.provider_settings"
        ),
    ] = {}
    base_url: Annotated[
        str | None,
        msgspec.Meta(
            description="address of an OpenAI-compatible server, for instance "
            "http://localhost:11434/v1; default: OPENAI_BASE_URL, or OpenAI"
        ),
    ] = None
    temperature: Annotated[
        NotNegative | None, msgspec.Meta(description="sampling temperature of all models")
    ] = None
    max_output_tokens: Annotated[
        AtLeastOne | None, msgspec.Meta(description="output tokens of one LM call")
    ] = None
    max_depth: Annotated[
        int,
        msgspec.Meta(
            ge=1,
            description="levels of RLMs: 1 is the root alone, 2 adds child RLMs, 3 their children; "
            "at the limit rlm_query is llm_query",
        ),
    ] = 2
    max_iterations: Annotated[int, msgspec.Meta(ge=1, description="turns of a run")] = 20
    batch_max_concurrent: Annotated[
        int, msgspec.Meta(ge=1, description="plain LM calls of one batch in flight at once")
    ] = 16
    provider_max_concurrent: Annotated[
        int,
        msgspec.Meta(
            ge=1,
            description="requests in flight to one provider, shared by all batches, children and "
            "runs; halves itself on 429 and grows back",
        ),
    ] = 64
    max_concurrent_subcalls: Annotated[
        int, msgspec.Meta(ge=1, description="child RLMs at work at once, in the whole tree")
    ] = 4
    timeout: Annotated[
        Positive | None, msgspec.Meta(description="seconds for the whole run; default: none")
    ] = None
    max_calls: Annotated[
        AtLeastOne | None, msgspec.Meta(description="LM calls of a run with its children")
    ] = None
    max_tokens: Annotated[
        AtLeastOne | None, msgspec.Meta(description="tokens of a run with its children")
    ] = None
    max_cost: Annotated[
        Positive | None, msgspec.Meta(description="USD of a run, as far as providers report cost")
    ] = None
    max_errors: Annotated[
        AtLeastOne | None, msgspec.Meta(description="failed LM calls in a row that end a run")
    ] = None
    call_timeout: Annotated[
        Positive, msgspec.Meta(description="seconds for one LM call, retries and waits included")
    ] = 300.0
    max_attempts: Annotated[
        int,
        msgspec.Meta(
            ge=1,
            description="requests that one LM call may cost, retries included; refusals for "
            "the rate (429) come on top, 10 at most",
        ),
    ] = 4
    hedge: Annotated[
        Hedge | None,
        msgspec.Meta(
            description="ask the slowest slots of a batch a second time, the first answer wins: "
            "p95 is from the time on within which 95% of the batch's slots have answered; "
            "a number is seconds"
        ),
    ] = None
    failure_rule: Annotated[
        Literal["gather", "taskgroup"],
        msgspec.Meta(
            description="gather: a failed slot never aborts its batch; "
            "taskgroup: the first failure cancels the rest"
        ),
    ] = "gather"
    repl: Annotated[
        Literal["subprocess", "kernel", "monty"],
        msgspec.Meta(
            description="where the model's code runs: subprocess, a process of its own without "
            "secrets; kernel, this notebook's own namespace (for live objects, with models that "
            "you trust); monty, a sandbox without files and network (pip install "
            "'rlm-notebook[sandbox]')"
        ),
    ] = "subprocess"
    auto_batch: Annotated[
        bool,
        msgspec.Meta(description="run loops of independent llm_query calls as one batch"),
    ] = False
    block_timeout: Annotated[
        Positive | None,
        msgspec.Meta(
            description="seconds that a code block may run; waiting for its sub-calls does not count"
        ),
    ] = 120.0
    repl_memory: Annotated[
        Positive | None, msgspec.Meta(description="GiB of memory that a REPL process may take")
    ] = 16.0
    output_limit: Annotated[
        int, msgspec.Meta(ge=200, description="characters of REPL output shown to the root model")
    ] = 20_000
    simulate: Annotated[
        str | None,
        msgspec.Meta(
            description="latency and failures of the builtin model, for instance "
            "'latency=lognormal(0.8,0.6) errors=0.05 seed=7'; "
            "also constant(0.5) and bimodal(0.2,5,0.1); seconds"
        ),
    ] = None
    trace_dir: Annotated[
        str, msgspec.Meta(description="folder for traces that have no path of their own")
    ] = "rlm-traces"
    keep_context: Annotated[
        NotNegative,
        msgspec.Meta(
            description="MiB up to which a context is kept beside the traces, once each, so that "
            "runs can be replayed, resumed and forked; 0: never"
        ),
    ] = 64.0


class Field(msgspec.Struct, frozen=True):
    """One setting, as the magic and the config read it."""

    name: str
    type: Any
    default: Any
    help: str

    @property
    def option(self) -> str:
        """``--max-depth``."""
        return "--" + self.name.replace("_", "-")


@functools.cache
def fields() -> tuple[Field, ...]:
    """All settings, in order."""
    return tuple(
        Field(field.name, field.type, field.default, field.type.__metadata__[-1].description)
        for field in msgspec.structs.fields(Settings)
    )


def convert(name: str, value: Any) -> Any:
    """A value for the setting ``name``, checked; texts are read as what the setting holds.

    Raises
    ------
    UsageError
        No such setting, or no such value.
    """
    by_name = {field.name: field for field in fields()}
    if name not in by_name:
        raise UsageError(f"no setting {name!r}; there are: {', '.join(by_name)}")
    field = by_name[name]
    if isinstance(value, str) and value.lower() in ("none", "") and field.default is None:
        return None
    try:
        if isinstance(value, str) and name == "providers":
            value = read_providers(value)
        return msgspec.convert(value, field.type, strict=False)
    except (msgspec.ValidationError, ValueError) as error:
        reason = str(error).replace("Expected ", "expected ").removesuffix(" - at `$`")
        raise UsageError(f"{field.option} {value!r}: {reason} ({field.help})") from None


def from_environment(environ: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The settings that environment variables give."""
    environ = os.environ if environ is None else environ
    found = {}
    for field in fields():
        value = environ.get(ENV_PREFIX + field.name.upper())
        if value is not None:
            found[field.name] = convert(field.name, value)
    return found


def provider_settings(settings: Settings, name: str) -> ProviderSettings:
    """What is set for the model ``provider/model``."""
    found = settings_for(settings.providers, name)
    return msgspec.structs.replace(
        found,
        temperature=settings.temperature if found.temperature is None else found.temperature,
        max_output_tokens=found.max_output_tokens or settings.max_output_tokens,
    )


OF_THE_USER = ("base_url", "providers", "trace_dir")
"""What a trace does not decide."""


def recorded(settings: Settings) -> dict[str, Any]:
    """The settings as a trace holds them: without what is secret."""
    found: dict[str, Any] = msgspec.to_builtins(settings)
    found["providers"] = {name: recordable(each) for name, each in settings.providers.items()}
    if settings.base_url is not None:
        found["base_url"] = shown(settings.base_url)
    return found


def from_recorded(found: Mapping[str, Any], **changes: Any) -> Settings:
    """The settings of a recorded run, with changes.

    A trace is a file that may come from anybody. So it does not say where keys are sent, where
    files are written and whether code runs in the user's own namespace: the user does.

    Raises
    ------
    UsageError
        A change is not right; or the run had one of these, and ``changes`` does not say it again.
    """
    for name in ("base_url", "providers"):
        if found.get(name) and name not in changes:
            option = f"--{name.replace('_', '-')}"
            raise UsageError(
                f"the recorded run was sent where {option} said: give {option} again (a trace "
                "alone does not say where your keys go)"
            )
    if found.get("repl") == "kernel" and "repl" not in changes:
        raise UsageError(
            "the recorded code ran in a notebook's own namespace: give repl (--repl kernel) if you "
            "trust it with yours"
        )
    values: dict[str, Any] = {}
    for field in fields():
        if field.name in found and field.name not in OF_THE_USER:
            try:
                values[field.name] = convert(field.name, found[field.name])
            except UsageError:
                continue  # of another version, or damaged: the default
    values |= {name: convert(name, value) for name, value in changes.items()}
    return Settings(**values)


def make_settings(**values: Any) -> Settings:
    """Settings from the environment, overridden by ``values``; all checked.

    Raises
    ------
    UsageError
        A name or a value is not right.
    """
    checked = {name: convert(name, value) for name, value in values.items()}
    return Settings(**{**from_environment(), **checked})
