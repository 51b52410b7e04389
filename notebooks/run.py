"""Run a notebook without a browser and say what came out: ``python run.py NOTEBOOK FOLDER``.

The executed copy and its traces go into FOLDER; the notebook itself is not changed.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

from rlm_notebook import Trace


def main() -> int:
    """Return 0 if every cell ran, and 1 otherwise."""
    if len(sys.argv) != 3:
        print("usage: python run.py NOTEBOOK FOLDER", file=sys.stderr)
        return 2
    source, folder = Path(sys.argv[1]), Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    # The kernel writes its traces below the folder it runs in.
    before = set(folder.glob("**/*.rlm.jsonl"))
    notebook = nbformat.read(source, as_version=4)
    client = NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(folder)}})
    failure = ""
    # As a user's own kernel would: settings and keys come from the environment as it is.
    try:
        client.execute(env=dict(os.environ))
    except CellExecutionError as error:
        failure = str(error)
    executed = folder / source.name
    nbformat.write(notebook, executed)
    traces = sorted(
        set(folder.glob("**/*.rlm.jsonl")) - before, key=lambda path: path.stat().st_mtime
    )
    for path in traces:
        root = Trace.load(path).root
        if root is not None and root.attrs.get("answer") is not None:
            print(f"answer: {root.attrs['answer']}")
        print(f"trace: {path}")
    print(f"executed notebook: {executed}")
    if failure:
        print(failure, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
