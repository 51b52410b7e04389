"""``builtin/extractive``: a fixed program in the place of a language model.

It plays both parts of an RLM. As root it writes real REPL code, step by step: look at the
context, split it, ask about the parts in batches, put the answers together. As leaf it extracts
the passage or value that best answers a question from the text it is given
(:mod:`rlm_notebook.lm.passages`). It understands no language, and says so.
"""

from __future__ import annotations

import asyncio
import re

from rlm_notebook.lm.passages import central_sentences, find
from rlm_notebook.lm.protocol import Message, Request, Response, Usage
from rlm_notebook.lm.questions import read_question
from rlm_notebook.prompts import CHILD_QUESTION, question_of

NAME = "builtin/extractive"
LARGE = 20_000
"""Characters from which a text is searched in a thread, off the event loop."""
HEAD = "Question: "
TEXT = "\n\nText:\n"
NOT_FOUND = "NOT FOUND"
NOTHING = "No passage of the context answers this."
MOST_RETRIES = 3
"""How many turns are spent on asking failed prompts again."""
_STEP = re.compile(r"^Step (\w+):", re.MULTILINE)
_BEST = re.compile(r"^best: (.*)$", re.MULTILINE)

_LOOK = """\
print(type(context).__name__, "of length", len(context))
if isinstance(context, str):
    print(context[:500])
elif isinstance(context, dict):
    print("keys:", [str(key)[:60] for key in list(context)[:10]])
else:
    print("first item:", str(context[0])[:500] if context else None)"""

_SPLIT = """\
# The context as a list of (name, text)
if isinstance(context, dict):
    parts = [(str(name), value if isinstance(value, str) else repr(value)) for name, value in context.items()]
elif isinstance(context, str):
    parts = [("", context)]
else:
    parts = []
    for number, item in enumerate(context):
        if isinstance(item, dict) and "content" in item:  # a chat message
            item = f"{item.get('role')}: {item['content']}"
        parts.append((f"item {number}", item if isinstance(item, str) else repr(item)))
parts = [(name, text) for name, text in parts if text.strip()]

# Pieces of about equal size, cut at line ends, none above the ceiling of one prompt
total = sum(len(text) for name, text in parts)
size = min(95_000, max(20_000, total // 20))
pieces, piece = [], ""
for name, text in parts:
    heading = f"=== {name} ===\\n" if name else ""
    start = 0
    while start < len(text):
        end = min(len(text), start + size)
        if end < len(text):
            end = max(text.rfind("\\n", start + size // 2, end), start + size // 2) + 1
        chunk = heading + text[start:end] + "\\n"
        if piece and len(piece) + len(chunk) > size:
            pieces.append(piece)
            piece = ""
        piece += chunk
        start = end
if piece:
    pieces.append(piece)
print(f"{total:,} characters in {len(parts)} parts, {len(pieces)} pieces")
"""

_NARROW = """
# Too many to ask about each: keep the pieces that hold a word of the question
if len(pieces) > 400:
    words = __WORDS__
    pieces = [p for p in pieces if any(word in p.lower() for word in words)][:400]
    print(f"{len(pieces)} pieces hold a word of the question")
"""

_ASK = """
question = __QUESTION__
prompts = [f"Question: {question}\\n\\nText:\\n{piece}" for piece in pieces]
answers = []
for start in range(0, len(prompts), __BATCH__):
    answers += __FUNCTION__(prompts[start : start + __BATCH__])
failed = [i for i, reply in enumerate(answers) if reply.startswith("Error:")]
print(f"{len(answers)} answers, {len(failed)} failed")
for i in failed[:3]:
    print(i, answers[i][:200])"""

_RETRY = """\
again = llm_query_batched([prompts[i] for i in failed[:20]])
for i, reply in zip(failed, again):
    answers[i] = reply
failed = [i for i, reply in enumerate(answers) if reply.startswith("Error:")]
print(f"{len(answers)} answers, {len(failed)} failed")"""

_JOIN = """\
import re

candidates = []
for i, reply in enumerate(answers):
    score = re.search(r"^SCORE: ([0-9.]+)$", reply, re.MULTILINE)
    if score:
        candidates.append((float(score[1]), -i, reply))
candidates.sort(reverse=True)
print(f"{len(candidates)} candidates, {len(failed)} pieces without an answer because of errors")
for score, i, reply in candidates[:3]:
    print(f"{score:.2f} piece {-i}: {reply[:300]}")
best = candidates[0][2] if candidates else None
print("best:", best.splitlines()[0] if best else None)"""

_SUM = """\
import re

counts = [re.search(r"^ANSWER: ([0-9]+)$", reply, re.MULTILINE) for reply in answers]
total_count = sum(int(found[1]) for found in counts if found)
best = f"ANSWER: {total_count}\\nEVIDENCE: the sum over {len(answers)} pieces\\nSCORE: 1.0"
print(f"{sum(map(bool, counts))} pieces with a count, {len(failed)} failed")
print("best:", best.splitlines()[0])"""

_SUMMARY = """\
best = "ANSWER: " + "\\n".join(dict.fromkeys(
    line for reply in answers if not reply.startswith("Error:") for line in reply.splitlines()[1:]
))
print("best:", best[:500])"""

_GIVE = """\
lines = best.splitlines()
answer["content"] = lines[0].removeprefix("ANSWER: ") + "".join(
    "\\n" + line.replace("EVIDENCE: ", "Evidence: ") for line in lines[1:] if not line.startswith("SCORE")
)
answer["ready"] = True"""

_GIVE_RAW = """\
answer["content"] = best
answer["ready"] = True"""


class ExtractiveLM:
    """The embedded default model: deterministic, needs no key and no network."""

    name = NAME

    async def complete(self, request: Request) -> Response:
        """Answer one request. Never fails."""
        size = sum(len(message.content) for message in request.messages)
        answer = {"root": root_reply, "final": final_reply, "sub": leaf_reply}[request.purpose]
        if size > LARGE:
            text = await asyncio.to_thread(answer, request.messages)
        else:
            text = answer(request.messages)
        usage = Usage(size // 4 + 1, len(text) // 4 + 1, 0.0)
        return Response(text, usage, "stop", NAME)

    async def close(self) -> None:
        """Nothing to release."""


def leaf_reply(messages: tuple[Message, ...]) -> str:
    """Extract the answer from the text of the prompt."""
    prompt = messages[-1].content
    ours = prompt.startswith(HEAD) and TEXT in prompt
    if ours:
        asked, _, text = prompt.removeprefix(HEAD).partition(TEXT)
    else:
        asked, text = _split_prompt(prompt)
    if re.match(r"\W*(?:please )?summar", asked, re.IGNORECASE):
        sentences = central_sentences(text)
        return "Extracted, not written:\n" + "\n".join(sentences) if sentences else NOT_FOUND
    found = find(read_question(asked), text)
    if found is None:
        return NOT_FOUND if ours else f"{NOT_FOUND}: no passage of the text answers this."
    if ours:
        return f"ANSWER: {found.answer}\nEVIDENCE: {found.evidence}\nSCORE: {found.score}"
    return f"{found.answer}\nEvidence: {found.evidence}"


def root_reply(messages: tuple[Message, ...]) -> str:
    """The next step, read off the steps so far and the output of the last one."""
    question = question_of(messages)
    steps = [
        step[1]
        for message in messages
        if message.role == "assistant" and (step := _STEP.search(message.content))
    ]
    output = messages[-1].content
    child = question == CHILD_QUESTION
    if child and steps:
        question = _childs_question(messages)
    if not steps:
        who = f"{NAME} here: a fixed program, not a language model.\n"
        return who + _step("look", "see what the context is.", _LOOK)
    broken = "Traceback (most recent call last)" in output or "The REPL is a new process" in output
    if broken:
        if steps.count("ask") > 1:
            return _step("answer", "the code failed twice; there is no answer.", _nothing())
        return _ask(question, child, messages)
    last = steps[-1]
    if last == "look":
        return _ask(question, child, messages)
    failed = last in ("ask", "retry") and re.search(r"answers, [1-9]\d* failed", output)
    if failed and steps.count("retry") < MOST_RETRIES:
        return _step("retry", "ask once more what failed.", _RETRY)
    if last in ("ask", "retry"):
        return _join(question)
    if re.search(r"^best: None$", output, re.MULTILINE):
        return _step("answer", "nothing was found.", _nothing())
    give = _GIVE_RAW if child else _GIVE
    return _step("answer", "the best candidate was shown; give it.", give)


def final_reply(messages: tuple[Message, ...]) -> str:
    """The best candidate that was seen, in words."""
    for message in reversed(messages):
        best = _BEST.findall(message.content) if message.role == "user" else []
        if best and best[-1] != "None":
            return str(best[-1]).removeprefix("ANSWER: ")
    return NOTHING


def _step(name: str, why: str, code: str) -> str:
    return f"Step {name}: {why}\n```repl\n{code}\n```"


def _ask(question: str, child: bool, messages: tuple[Message, ...]) -> str:
    workers = "with a REPL of its own" in messages[0].content
    recursive = workers and not child and "recursively" in question.lower()
    split = _SPLIT
    if child:
        head = 'request, _, text = context.partition("\\n\\nText:\\n")\nparts = [("", text)]\n'
        split = head + _SPLIT[_SPLIT.index("\n# Pieces") :]
    words = sorted(read_question(question).terms)
    code = (split + _NARROW + _ASK).replace("__WORDS__", repr(words))
    asked = re.sub(r"\s*\brecursively\b,?", "", question, flags=re.IGNORECASE).strip()
    code = code.replace("__QUESTION__", repr(asked))
    code = code.replace("__FUNCTION__", "rlm_query_batched" if recursive else "llm_query_batched")
    code = code.replace("__BATCH__", "4" if recursive else "20")
    return _step("ask", "split the context, ask the same of every piece.", code)


def _join(question: str) -> str:
    if re.match(r"\W*(?:please )?summar", question, re.IGNORECASE):
        return _step("join", "put the extracted sentences together.", _SUMMARY)
    if read_question(question).kind == "count":
        return _step("join", "add the counts up.", _SUM)
    return _step("join", "compare the candidates by their score.", _JOIN)


def _nothing() -> str:
    return (
        f'answer["content"] = {NOTHING!r}\n'
        'if globals().get("failed"):\n'
        '    answer["content"] += f" ({len(failed)} pieces could not be read.)"\n'
        'answer["ready"] = True'
    )


def _childs_question(messages: tuple[Message, ...]) -> str:
    """The question at the head of a child's context, as the first step printed it."""
    for message in messages:
        found = re.search(rf"^{HEAD}(.*)$", message.content, re.MULTILINE)
        if message.role == "user" and found:
            return found[1].strip()
    return CHILD_QUESTION


def _split_prompt(prompt: str) -> tuple[str, str]:
    """Question and text of a prompt that somebody else wrote."""
    marked = re.search(r"^\s*(?:question|task|q):\s*(.+)$", prompt, re.IGNORECASE | re.MULTILINE)
    if marked:
        return marked[1].strip(), prompt[: marked.start()] + prompt[marked.end() :]
    lines = [line for line in prompt.split("\n") if line.strip()]
    if not lines:
        return "", ""
    asked = [line for line in (lines[0], lines[-1]) if line.rstrip().endswith("?")]
    question = asked[0] if asked else lines[0]
    if len(lines) == 1:  # a question and its text on one line
        sentences = re.split(r"(?<=[.!?:])\s+", prompt.strip())
        question = next((s for s in sentences if s.endswith("?")), sentences[0])
    return question, prompt.replace(question, "", 1)
