"""Measure us and our peers on this machine, side by side: ``python -m tests.benchmarks.bench``.

The peers live in a virtual environment of their own (.cache/bench-venv), made when it is missing.
Results go to build/bench.json, a list of {"name", "value", "unit", "versus", "ratio"}; ``ratio`` is
``value`` divided by the value of ``versus``. Values are medians, but for the long measurements
(10,000 slots, rate limits), which are made once.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HOME = ROOT / ".cache" / "bench-venv"
PYTHON = HOME / ("Scripts" if os.name == "nt" else "bin") / "python"
OUT = ROOT / "build" / "bench.json"


def requirements() -> list[str]:
    """Our own dependencies, the front ends, the peers and the browser driver."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    return [*project["dependencies"], *extras["lab"], *extras["bench"], "openai", "playwright"]


def make_venv() -> None:
    """Build the environment, unless it is there with just these requirements."""
    wanted = "\n".join(requirements())
    stamp = HOME / "requirements.txt"
    if stamp.exists() and stamp.read_text() == wanted:
        return
    print(f"building {HOME}", file=sys.stderr)
    subprocess.run([sys.executable, "-m", "venv", "--clear", HOME], check=True)
    subprocess.run([PYTHON, "-m", "pip", "install", "--quiet", *requirements()], check=True)
    stamp.write_text(wanted)


def main() -> None:
    """Make the environment and go on inside it, with this checkout importable."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7, help="rounds a median is taken of")
    parser.add_argument("--only", nargs="*", help="names of measurements; default: all")
    parser.add_argument("out", type=Path, nargs="?", default=OUT, help="default: build/bench.json")
    given = parser.parse_args()
    make_venv()
    given.out.parent.mkdir(parents=True, exist_ok=True)
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    command = [
        str(PYTHON),
        "-m",
        "tests.benchmarks.measure",
        json.dumps([given.rounds, given.only]),
    ]
    env = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(command, env=env, cwd=ROOT, stdout=subprocess.PIPE, check=True)
    rows = json.loads(done.stdout)
    given.out.write_text(json.dumps(rows, indent=1) + "\n")
    for row in rows:
        versus = f"{row['ratio']:.3f} of {row['versus']}" if row["ratio"] is not None else ""
        print(f"{row['name']:28} {row['value']:12.4g} {row['unit']:6} {versus}")


if __name__ == "__main__":
    main()
