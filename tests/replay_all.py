"""Replay every trace of a folder: ``python -m tests.replay_all FOLDER``. Fails if one differs."""

from __future__ import annotations

import sys
from pathlib import Path

from rlm_notebook import Trace


def main() -> int:
    """Return 0 if all did the same again, and there was one at least."""
    paths = sorted(Path(sys.argv[1]).glob("**/*.rlm.jsonl"))
    replays = [(path.name, Trace.load(path).replay()) for path in paths]
    for name, replay in replays:
        print(f"{name}: {replay!r}")
    if not replays:
        print(f"there is no trace in {sys.argv[1]}", file=sys.stderr)
    return 0 if replays and all(replay.same for _, replay in replays) else 1


if __name__ == "__main__":
    raise SystemExit(main())
