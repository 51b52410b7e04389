"""Known providers: where they are, where their key is, what their API wants.

``openai/gpt-5``, ``anthropic/claude-sonnet-4-5``, ``gemini/gemini-2.5-flash``,
``openrouter/anthropic/claude-sonnet-4.5``, ``ollama/llama3.2``, ``vllm/MODEL``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True)
class Preset:
    """One provider."""

    provider: str
    """What stands before the slash."""
    address: str
    """Up to and with ``/v1``."""
    key_variable: str
    """Variable of the key, in the environment, a ``.env`` file or the keyring."""
    api: Literal["openai", "anthropic"] = "openai"
    """Chat completions, or messages."""
    needs_key: bool = True
    """Whether the address above cannot do without one."""
    movable: bool = False
    """Whether it is a program that runs at many addresses, so that ``base_url`` moves it."""
    example: str = "MODEL"
    """A model's name, for error messages."""
    extra_body: dict[str, Any] = field(default_factory=dict)
    """Put into each request."""

    @property
    def address_variable(self) -> str:
        """Variable that moves it."""
        return f"{self.provider.upper()}_BASE_URL"


OPENAI = Preset(
    "openai",
    "https://api.openai.com/v1",
    "OPENAI_API_KEY",
    movable=True,
    example="gpt-5",
)
ANTHROPIC = Preset(
    "anthropic",
    "https://api.anthropic.com/v1",
    "ANTHROPIC_API_KEY",
    api="anthropic",
    example="claude-sonnet-4-5",
)
PRESETS = {
    preset.provider: preset
    for preset in (
        OPENAI,
        ANTHROPIC,
        Preset(
            "openrouter",
            "https://openrouter.ai/api/v1",
            "OPENROUTER_API_KEY",
            example="anthropic/claude-sonnet-4.5",
            extra_body={"usage": {"include": True}},  # makes it report the cost
        ),
        Preset(
            "gemini",
            "https://generativelanguage.googleapis.com/v1beta/openai",
            "GEMINI_API_KEY",
            example="gemini-2.5-flash",
        ),
        Preset(
            "ollama",
            "http://localhost:11434/v1",
            "OLLAMA_API_KEY",
            needs_key=False,
            movable=True,
            example="llama3.2",
        ),
        Preset("vllm", "http://localhost:8000/v1", "VLLM_API_KEY", needs_key=False, movable=True),
    )
}


def named(provider: str, api: Literal["openai", "anthropic"], address: str) -> Preset:
    """A provider of the user's own name."""
    variable = "".join(c if c.isalnum() else "_" for c in provider.upper()) + "_API_KEY"
    return Preset(provider, address, variable, api, needs_key=False, movable=True)
