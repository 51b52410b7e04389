"""Traces from a stranger: mutated files are loaded and looked at, in a process with little memory.

``python -m tests.trace.fuzz COUNT SEED`` ends with 0 if nothing was executed, no other file was
opened, no more memory was taken than it may, and no error was raised but those that say what to do.
"""

from __future__ import annotations

import json
import random
import resource
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

import rlm_notebook
from rlm_notebook import Trace
from rlm_notebook.errors import RLMError
from rlm_notebook.forks import Edit, forked
from rlm_notebook.settings import from_recorded
from rlm_notebook.trace.catalog import catalog
from rlm_notebook.trace.follow import Follower
from rlm_notebook.view.film import FilmView
from rlm_notebook.view.rows import fields, row

ARCHIVE = Path(__file__).parent / "archive"
PACKAGE = str(Path(rlm_notebook.__file__).parent)
"""Its own files, for instance the widget's."""
MEMORY = 1 << 30
"""Bytes beside what the process has when it begins."""
FORBIDDEN = ("exec", "compile", "import", "os.system", "subprocess.Popen", "socket.connect")
JUNK: list[Any] = [
    *(None, True, False, -1, 0, 7, 2**53, 10**30, 10**400, 1e308, -1e308, "", "x", "x" * 5_000),
    *([], {}, [[]], [1, "a", None], {"a": {"b": []}}, "\ud800", "\u202e</script>", "../../x"),
    *({"$text": "0" * 32}, {"$text": 3}, {"$text": "../../etc/passwd", "chars": 1e9}),
    *({"type": [], "message": {}}, [{"started": 1, "ended": "x"}], [{"role": 1, "content": {}}]),
    *("waiting", "running", "ok", "error", "slot", "run", "batch", "lm_call", "turn", "code"),
]


def looked_at(path: Path, folder: Path, *, closely: bool = True) -> None:
    """All that can be made of a trace file without running its code; ``closely``: what is slow."""
    trace = Trace.load(path)
    list(trace.events)
    repr(trace), trace.to_text(), trace.to_html()
    for span in trace.tree.spans.values():
        row(span), fields(span), repr(span), span.place
        _ = (span.code, span.prompt, span.response, span.tokens_per_second, span.latency)
    list(trace.find(error=True)), trace.batches, trace.slots, trace.usage, trace.seconds
    if trace.turns:
        trace.variables(turn=len(trace.turns))
    Follower(trace.tree, strict=True)
    for span in list(trace.tree.spans.values())[1:9]:
        for edit in (Edit(), Edit(code="1"), Edit(response="x"), Edit(prompt="p", model="m")):
            try:
                forked(trace, span, edit)
            except RLMError:
                continue
    if closely:
        trace.to_frame()
        comparison = trace.compare(trace)
        repr(comparison), comparison._repr_html_(), comparison.to_frame()
        found = catalog(folder)
        repr(found), found._repr_html_(), found.to_frame()
        film = FilmView(trace)
        film.seek(trace.tree.time // 2)
        film.step(3), film.mimebundle(), film.forget()
    from_recorded(trace.header.settings)


def mutated(data: bytes, draw: random.Random) -> bytes:
    """One to four changes: of bytes, of lines, or of values in the JSON."""
    for _ in range(draw.randint(1, 4)):
        data = draw.choice((_bytes, _bytes, _lines, _lines, _values, _values, _values))(data, draw)
    return data


def _bytes(data: bytes, draw: random.Random) -> bytes:
    at, size = draw.randrange(len(data) + 1), draw.choice((1, 1, 2, 9, 200))
    kind = draw.randrange(4)
    if kind == 0:
        return data[:at] + data[at + size :]
    if kind == 1:
        return data[:at]
    if kind == 2:
        return data[:at] + draw.randbytes(size) + data[at + size :]
    return data[:at] + draw.choice((b"[" * 3_000, b"\n", b"\0", b'"', b"9" * 5_000)) + data[at:]


def _lines(data: bytes, draw: random.Random) -> bytes:
    lines = data.split(b"\n")
    a, b = draw.randrange(len(lines)), draw.randrange(len(lines))
    kind = draw.randrange(5)
    if kind == 0:
        lines[a], lines[b] = lines[b], lines[a]
    elif kind == 1:
        lines.insert(b, lines[a])
    elif kind == 2:
        del lines[min(a, b) : min(a, b) + 3]
    elif kind == 3:
        lines[a : a + 1] = [lines[a]] * draw.randint(2, 50)
    else:
        draw.shuffle(lines)
    return b"\n".join(lines)


def _values(data: bytes, draw: random.Random) -> bytes:
    lines = data.split(b"\n")
    number = draw.randrange(len(lines))
    try:
        record = json.loads(lines[number])
    except ValueError:
        return data
    places: list[tuple[Any, Any]] = []
    stack = [record]
    while stack:
        value = stack.pop()
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, each in items:
            places.append((value, key))
            if isinstance(each, dict | list):
                stack.append(each)
    if places:
        holder, key = draw.choice(places)
        holder[key] = draw.choice(JUNK)
        if isinstance(holder, dict) and draw.random() < 0.2:
            holder[draw.choice(("index", "child", "edited", "$text", "size"))] = draw.choice(JUNK)
    lines[number] = json.dumps(record).encode()
    return b"\n".join(lines)


def main(count: int, seed: int) -> int:
    """Try so many files; the number of those at which something was wrong."""
    draw = random.Random(seed)
    originals = [path.read_bytes() for path in sorted(ARCHIVE.glob("v*/*.rlm.jsonl"))]
    wrong = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = folder / "x.rlm.jsonl"
        for original in originals:  # what is imported late is imported now
            path.write_bytes(original)
            looked_at(path, folder)
        from_recorded({"repl": "subprocess", "max_turns": 3})
        seen: list[str] = []

        def watch(event: str, arguments: tuple[Any, ...]) -> None:
            elsewhere = event == "open" and not str(arguments[0]).startswith((name, PACKAGE))
            if elsewhere or event in FORBIDDEN:
                seen.append(f"{event}{arguments!r:.200}")

        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
        watching = [True]
        sys.addaudithook(lambda event, arguments: watching[0] and watch(event, arguments))
        for number in range(count):
            data = mutated(draw.choice(originals), draw)
            path.write_bytes(data)
            error = ""
            try:
                looked_at(path, folder, closely=number % 10 == 0)
            except RLMError as refused:
                error = "" if "\n" not in str(refused) else f"more than a line: {refused}"
            except BaseException:
                watching[0] = False
                error = traceback.format_exc(limit=-4)
                watching[0] = True
            if error or seen:
                wrong += 1
                kept = Path(tempfile.gettempdir()) / f"fuzz-{seed}-{number}.rlm.jsonl"
                watching[0] = False
                kept.write_bytes(data)
                watching[0] = True
                print(f"{kept}: {error}{seen}", flush=True)
                seen.clear()
        watching[0] = False
    return wrong


if __name__ == "__main__":
    sys.exit(min(main(int(sys.argv[1]), int(sys.argv[2])), 100))
