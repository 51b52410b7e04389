"""The frames between the REPL process and its parent: a small JSON header and raw texts.

Prompts and answers travel as plain UTF-8 beside the header, so that ten megabytes of prompts
cost two copies and no parsing. What comes from the REPL process is only ever decoded as JSON and
as text. Standard library only: the REPL process imports this file by its path.
"""

from __future__ import annotations

import json
import struct
from typing import Any

PREFIX = struct.Struct(">II")
"""Bytes of the header, number of texts."""
SIZE = struct.Struct(">Q")
MAX_HEADER = 64 * 1024 * 1024
MAX_TEXTS = 1_000_000
MAX_BYTES = 4 * 1024**3
"""Limits on what one frame may claim; a frame beyond them is a broken protocol."""


def encode(header: dict[str, Any], texts: list[bytes]) -> list[bytes]:
    """A frame as chunks to be written one after another."""
    head = json.dumps(header, separators=(",", ":")).encode()
    sizes = b"".join([SIZE.pack(len(text)) for text in texts])
    return [PREFIX.pack(len(head), len(texts)), sizes, head, *texts]


def to_bytes(text: str) -> bytes:
    """UTF-8; a lone surrogate becomes U+FFFD."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()
