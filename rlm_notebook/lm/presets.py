"""Providers that speak OpenAI's chat completions: where they are and where their key is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Preset:
    """One provider.

    ``openrouter/anthropic/claude-sonnet-5``, ``ollama/llama3.2``, ``vllm/MODEL``, ``gemini/MODEL``.
    """

    provider: str
    """What stands before the slash."""
    address: str
    """Up to and with ``/v1``."""
    key_variable: str
    """Environment variable of the key."""
    needs_key: bool = True
    """Whether the address above cannot do without one."""
    movable: bool = False
    """Whether it is a program that runs at many addresses, so that ``base_url`` moves it."""

    @property
    def address_variable(self) -> str:
        """Environment variable that moves it."""
        return f"{self.provider.upper()}_BASE_URL"


OPENAI = Preset("openai", "https://api.openai.com/v1", "OPENAI_API_KEY", movable=True)
PRESETS = {
    preset.provider: preset
    for preset in (
        OPENAI,
        Preset("openrouter", "https://openrouter.ai/api/v1", "OPENROUTER_API_KEY"),
        Preset(
            "gemini",
            "https://generativelanguage.googleapis.com/v1beta/openai",
            "GEMINI_API_KEY",
        ),
        Preset("ollama", "http://localhost:11434/v1", "OLLAMA_API_KEY", False, movable=True),
        Preset("vllm", "http://localhost:8000/v1", "VLLM_API_KEY", False, movable=True),
    )
}
