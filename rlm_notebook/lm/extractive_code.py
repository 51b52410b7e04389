"""The REPL code that ``builtin/extractive`` writes as root.

It is read by people, in the view: plain Python, one step a block.
"""

from __future__ import annotations

from rlm_notebook.prompts import BATCH_CEILING

HEAD = "Question: "
TEXT = "\n\nText:\n"
NOTHING = "No passage of the context answers this."
SMALL = 30_000
"""Characters up to which a str context is asked about in one plain call."""
MOST_PIECES = 400
"""Prompts (20 batches) above which the pieces are narrowed down by a search in Python first."""
CEILING = 95_000
"""Characters of a piece: with the question and the overlap it stays under the prompt ceiling."""
CHILD_CEILING = 400_000
"""Characters of a prompt for a child RLM, which splits it again."""

LOOK = """\
print(type(context).__name__, "of length", len(context))
if isinstance(context, str):
    print(context[:500])
elif isinstance(context, dict):
    print("keys:", [str(key)[:60] for key in list(context)[:10]])
    print(sum(len(str(value)) for value in context.values()), "characters in all")
elif not isinstance(context, (list, tuple)):  # a table, an array, bytes
    print(str(context)[:500])
else:
    print("first item:", str(context[0])[:500] if context else None)
    print(sum(len(str(item)) for item in context), "characters in all")"""

LOOK_CHILD = """\
print(len(context), "characters. Beginning and end:")
print(context[:1500])
print("[...]")
print(context[-500:])"""

_AS_TEXT = """\
import json

def as_text(value):
    if isinstance(value, str):
        return value
    if isinstance(value, dict) and "role" in value and "content" in value:  # a chat message
        return f"{value['role']}: {value['content']}"
    return json.dumps(value, indent=1, ensure_ascii=False, default=str)

"""
_ANY_AS_TEXT = """\
import json

def as_text(value):
    if isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, dict) and "role" in value and "content" in value:  # a chat message
        return f"{value['role']}: {value['content']}"
    for name in ("to_csv", "write_csv"):  # a table
        if hasattr(value, name):
            return getattr(value, name)()
    for name in ("to_pylist", "tolist", "to_list"):  # an array
        if hasattr(value, name):
            value = getattr(value, name)()
    return json.dumps(value, indent=1, ensure_ascii=False, default=str)

"""
_ONE_TEXT = 'parts = [("", context)]'
_OF_DICT = "parts = [(str(name), as_text(value)) for name, value in context.items()]"
_OF_LIST = 'parts = [(f"item {number}", as_text(item)) for number, item in enumerate(context)]'
_PARTS = {
    "str": f"# One text, without a name\n{_ONE_TEXT}\n",
    "dict": f"{_AS_TEXT}# The values, with their keys as names\n{_OF_DICT}\n",
    "list": f"{_AS_TEXT}# The items, with their numbers as names\n{_OF_LIST}\n",
    "": (
        f"{_ANY_AS_TEXT}# A list of (name, text)\n"
        f"if isinstance(context, str):\n    {_ONE_TEXT}\n"
        f"elif isinstance(context, dict):\n    {_OF_DICT}\n"
        f"elif isinstance(context, (list, tuple)):\n    {_OF_LIST}\n"
        'else:\n    parts = [("", as_text(context))]\n'
    ),
}
_CHILD_PARTS = """\
# The text without the request
import re

text = context.partition("\\n\\nText:\\n")[2] or context.replace(question, "", 1)
head, *rest = re.split(r"^=== (.+) ===\\n", text, flags=re.MULTILINE)
parts = [("", head), *zip(rest[::2], rest[1::2])]
"""

_SPLIT = """
# Pieces of about equal size, cut at line ends (or spaces), none above the ceiling of one prompt
total = sum(len(name) + len(text) + 10 for name, text in parts)
size = min({ceiling:_}, max({floor:_}, total // 19))  # one full batch where that is possible
{overlap}
pieces, piece = [], ""
for name, text in parts:
    heading = f"=== {{name}} ===\\n" if name else ""
    start = 0
    while start < len(text):
        end = min(len(text), start + size)
        if end < len(text):
            cut = text.rfind("\\n", start + size // 2, end)
            if cut < 0:
                cut = text.rfind(" ", start + size // 2, end)
            end = cut + 1 if cut > 0 else end
        chunk = heading + {chunk} + "\\n"
        if piece and len(piece) + len(chunk) > size:
            pieces.append(piece)
            piece = ""
        piece += chunk
        start = end
if piece.strip():
    pieces.append(piece)
print(f"{{total:,}} characters with names in {{len(parts)}} parts, {{len(pieces)}} pieces")
"""
_OVERLAP = (
    "overlap = 200  # characters, so that no passage is cut in two",
    "text[max(0, start - overlap) : end]",
)
_NO_OVERLAP = ("# No overlap: nothing may be counted twice", "text[start:end]")
_COLUMNS = (
    'columns = parts[0][1].split("\\n", 1)[0] + "\\n"  # repeated above each piece of the table',
    '(columns if start else "") + text[start:end]',
)

_NARROW = """
# Too many to ask about each: weigh the pieces by the rarity of the question's words in them
if len(pieces) > {most}:
    words = {words}
    lowered = [piece.lower() for piece in pieces]
    rarity = {{word: 1 / (1 + sum(word in text for text in lowered)) for word in words}}
    weight = [sum(rarity[word] for word in words if word in text) for text in lowered]
    kept = sorted(sorted(range(len(pieces)), key=lambda i: -weight[i])[:{most}])
    print(f"narrowed down by a search for {{words}}: {{len(kept)}} of {{len(pieces)}} pieces")
    pieces = [pieces[i] for i in kept]
"""

_ASK = """
prompts = [f"Question: {{question}}\\n\\nText:\\n{{piece}}" for piece in pieces]
answers = []
for start in range(0, len(prompts), {batch}):
    answers += {function}(prompts[start : start + {batch}])
"""

_ASK_ONE = """\
question = {question}
prompts = [f"Question: {{question}}\\n\\nText:\\n{{context}}"]
answers = [llm_query(prompts[0])]
"""

_REPORT = """\
failed = [i for i, reply in enumerate(answers) if reply.startswith("Error:")]
print(f"{len(answers)} answers, {len(failed)} failed")
for i in failed[:3]:
    print(i, answers[i][:200])
for reply in [reply for reply in answers if reply.startswith("ANSWER:")][:3]:
    print("seen:", reply.splitlines()[0][:200])"""

_RETRY = """\
for i, reply in zip(failed, {function}([prompts[i] for i in failed[:{batch}]])):
    answers[i] = reply
"""

JOIN = """\
import re

candidates = []
for i, reply in enumerate(answers):
    score = re.search(r"^SCORE: ([0-9.]+)$", reply, re.MULTILINE)
    if score:
        candidates.append((float(score[1]), -i, reply))
    elif reply.strip() and not reply.startswith(("Error:", "NOT FOUND")):
        candidates.append((0.1, -i, "ANSWER: " + reply.strip()))  # another model, in its own words
candidates.sort(reverse=True)
print(f"{len(candidates)} candidates, {len(failed)} pieces without an answer because of errors")
for score, i, reply in candidates[:3]:
    print(f"{score:.2f} piece {-i}: {reply[:300]}")
best = candidates[0][2] if candidates else None
print("best:", best.splitlines()[0] if best else None)"""

ADD = """\
import re

counts = [re.search(r"^ANSWER: ([0-9]+)$", reply, re.MULTILINE) for reply in answers]
total_count = sum(int(found[1]) for found in counts if found)
read = len(answers) - len(failed)
best = f"ANSWER: {total_count}\\nEVIDENCE: the sum over {read} pieces" if read else None
print(f"{sum(map(bool, counts))} pieces with a count, {len(failed)} failed")
print("best:", best.splitlines()[0] if best else None)"""

CONDENSE = """\
sentences = []
for reply in answers:
    if reply.startswith("Extracted"):
        sentences += reply.splitlines()[1:]
print(len(sentences), "sentences from", len(answers), "pieces")
best = None
if len(answers) == 1 and sentences:
    best = "ANSWER: " + answers[0]
elif sentences:  # a summary of the summaries
    joined = "\\n\\n".join(sentences)[:95_000]
    reply = llm_query(f"Question: {question}\\n\\nText:\\n{joined}")
    if reply.startswith("Error:"):
        reply = "\\n".join(sentences[:3])
    best = "ANSWER: " + reply
print("best:", best[:500] if best else None)"""

GIVE = """\
lines = best.splitlines()
answer["content"] = lines[0].removeprefix("ANSWER: ") + "".join(
    "\\n" + line.replace("EVIDENCE: ", "Evidence: ") for line in lines[1:] if not line.startswith("SCORE")
)
if failed:
    answer["content"] += f"\\n({len(failed)} of {len(answers)} pieces could not be read.)"
answer["ready"] = True"""

GIVE_TO_PARENT = """\
answer["content"] = best
answer["ready"] = True"""

GIVE_NOTHING = f"""\
answer["content"] = {NOTHING!r}
if globals().get("failed"):
    answer["content"] += f" ({{len(failed)}} of {{len(answers)}} pieces could not be read.)"
    if len(failed) == len(answers):
        answer["content"] = f"No answer: every call failed ({{len(failed)}})."
answer["ready"] = True"""


def ask_all(
    question: str,
    words: list[str],
    *,
    kind: str = "",
    child: bool = False,
    recursive: bool = False,
    counting: bool = False,
    table: bool = False,
    huge: bool = False,
) -> str:
    """Split the context and ask about every piece.

    Parameters
    ----------
    words
        What to search for in a huge context.
    kind
        The type of the context (``str``, ``dict``, ``list``), '' if it is not known.
    child
        The context is a prompt with the question in it.
    recursive
        Ask child RLMs, which split their piece again.
    counting
        Let nothing stand in two pieces, or it would be counted twice.
    table
        The first line names the columns.
    huge
        There may be more than ``MOST_PIECES`` pieces.
    """
    overlap, chunk = _NO_OVERLAP if counting else _COLUMNS if table else _OVERLAP
    return (
        f"question = {question!r}\n"
        + (_CHILD_PARTS if child else _PARTS.get(kind, _PARTS[""]))
        + _SPLIT.format(
            ceiling=CHILD_CEILING if recursive else CEILING,
            floor=50_000 if recursive else 20_000,
            overlap=overlap,
            chunk=chunk,
        )
        + (_NARROW.format(most=MOST_PIECES, words=words) if huge else "")
        + _ASK.format(batch=BATCH_CEILING, function=_batched(recursive=recursive))
        + _REPORT
    )


def ask_one(question: str) -> str:
    """Ask about the whole of a small context."""
    return _ASK_ONE.format(question=repr(question)) + _REPORT


def retry(*, recursive: bool) -> str:
    """Ask the failed prompts once more."""
    return _RETRY.format(batch=BATCH_CEILING, function=_batched(recursive=recursive)) + _REPORT


def _batched(*, recursive: bool) -> str:
    return "rlm_query_batched" if recursive else "llm_query_batched"
