"""``builtin/extractive``: a fixed program in the place of a language model.

It plays both parts of an RLM. As root it writes real REPL code, step by step: look at the
context, split it, ask about the parts in batches, put the answers together. As leaf it extracts
the passage or value that best answers a question from the text it is given
(:mod:`rlm_notebook.lm.passages`). It understands no language, and says so.
"""

from __future__ import annotations

import asyncio
import re

from rlm_notebook.lm import extractive_code as code
from rlm_notebook.lm.passages import central_sentences, find
from rlm_notebook.lm.protocol import Message, Request, Response, Usage
from rlm_notebook.lm.questions import read_question
from rlm_notebook.lm.sections import Sections
from rlm_notebook.prompts import CHILD_QUESTION, question_of

NAME = "builtin/extractive"
LARGE = 20_000
"""Characters from which a text is searched in a thread, off the event loop."""
NOT_FOUND = "NOT FOUND"
MOST_RETRIES = 3
"""How many turns are spent on asking failed prompts again."""
_STEP = re.compile(r"^Step (\w+):", re.MULTILINE)
_SEEN = re.compile(r"^(?:best|seen): ANSWER: (.*)$", re.MULTILINE)
_FAILED = re.compile(r"^\d+ answers, [1-9]\d* failed$", re.MULTILINE)
_BROKEN = re.compile(
    r"^Traceback \(most recent call last\)|The REPL is a new process", re.MULTILINE
)
_SUMMARY = re.compile(r"\W*(?:please )?summar", re.IGNORECASE)
_HINT = re.compile(r"\brecursively\b|\bchild RLMs?\b|\brlm_query", re.IGNORECASE)


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
    ours = prompt.startswith(code.HEAD) and code.TEXT in prompt
    if ours:
        asked, _, text = prompt.removeprefix(code.HEAD).partition(code.TEXT)
    else:
        asked, text = _split_prompt(prompt)
    if _SUMMARY.match(asked):
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
    child = question == CHILD_QUESTION
    steps = [
        step[1]
        for message in messages
        if message.role == "assistant" and (step := _STEP.search(message.content))
    ]
    if not steps:
        who = f"{NAME} here: a fixed program, not a language model.\n"
        return who + _step(
            "look", "see what the context is.", code.LOOK_CHILD if child else code.LOOK
        )
    recursive = not child and _HINT.search(question) is not None and _has_workers(messages)
    question = _childs_question(messages) if child else _without_hint(question)
    output = messages[-1].content
    last = steps[-1]
    if last != "look" and _BROKEN.search(output):
        if steps.count("ask") > 1:
            return _step("answer", "the code failed twice; there is no answer.", code.GIVE_NOTHING)
        return _ask(question, messages, child=child, recursive=recursive)
    if last == "look":
        return _ask(question, messages, child=child, recursive=recursive)
    if last in ("ask", "retry"):
        again = steps.count("retry") < MOST_RETRIES and _turns_left(output) > 2
        if _FAILED.search(output) and again:
            return _step("retry", "ask once more what failed.", code.retry(recursive=recursive))
        return _join(question)
    if re.search(r"^best: None$", output, re.MULTILINE):
        return _step("answer", "nothing was found.", code.GIVE_NOTHING)
    give = code.GIVE_TO_PARENT if child else code.GIVE
    return _step("answer", "the best candidate was shown; give it.", give)


def final_reply(messages: tuple[Message, ...]) -> str:
    """The best candidate that was seen, in words."""
    for message in reversed(messages):
        seen = _SEEN.findall(message.content) if message.role == "user" else []
        if seen:
            return str(seen[-1])
    return code.NOTHING


def _step(name: str, why: str, block: str) -> str:
    return f"Step {name}: {why}\n```repl\n{block}\n```"


def _ask(question: str, messages: tuple[Message, ...], *, child: bool, recursive: bool) -> str:
    """Read the look at the context, and choose how to split it."""
    looked = next((m.content for m in messages[2:] if m.role == "user"), "")
    typed = re.search(r"^(\w+) of length (\d+)\n(.*)", looked, re.MULTILINE | re.DOTALL)
    kind, length, content = typed.groups() if typed else ("", "0", "")
    summed = re.findall(r"^(\d+) characters in all$", looked, re.MULTILINE)
    size = int(length) if kind == "str" else int(summed[-1]) if summed else 0
    if kind == "str" and size <= code.SMALL and not child and not recursive:
        block = code.ask_one(question)
        return _step("ask", "the context is small: one call with all of it.", block)
    read = read_question(question)
    huge = size > code.MOST_PIECES * code.CEILING
    block = code.ask_all(
        question,
        sorted(read.terms, key=lambda term: (-read.terms[term], term)),
        kind=kind,
        child=child,
        recursive=recursive,
        counting=read.kind == "count",
        table=kind in ("DataFrame", "Table")
        or (kind == "str" and Sections(content).header(1) == 0),
        huge=huge,
    )
    why = "split the context, ask the same of every piece."
    if huge:
        why = "the context is huge: search it for the question's words, ask about the best pieces."
    return _step("ask", why, block)


def _join(question: str) -> str:
    if _SUMMARY.match(question):
        return _step("join", "put the extracted sentences together.", code.CONDENSE)
    if read_question(question).kind == "count":
        return _step("join", "add the counts up.", code.ADD)
    return _step("join", "compare the candidates by their score.", code.JOIN)


def _turns_left(output: str) -> int:
    left = re.search(r"^(\d+) turns are left\.$|^This is your (last) turn\.$", output, re.MULTILINE)
    return 99 if left is None else 1 if left[2] else int(left[1])


def _has_workers(messages: tuple[Message, ...]) -> bool:
    return messages[0].role == "system" and "with a REPL of its own" in messages[0].content


def _without_hint(question: str) -> str:
    """The question without the words on how to work, which are no part of what is sought."""
    if not _HINT.search(question):
        return question
    kept = []
    for sentence in re.split(r"(?<=[.?!])\s+", question):
        rest = " ".join(_HINT.sub("", sentence).split()).lstrip(", ")
        if len(re.findall(r"\w+", rest)) > 3 or not _HINT.search(sentence):
            kept.append(rest)  # "Work recursively." is dropped whole
    return " ".join(kept) or question


def _childs_question(messages: tuple[Message, ...]) -> str:
    """The question in a child's context, as the first step printed its beginning and end."""
    for message in messages[2:]:
        _, shown, printed = message.content.partition("Beginning and end:\n")
        if message.role != "user" or not shown:
            continue
        if printed.startswith(code.HEAD) and code.TEXT in printed:
            return printed.removeprefix(code.HEAD).partition(code.TEXT)[0]
        beginning, _, end = printed.partition("\n[...]\n")
        end = end.rpartition("\n\n")[0]  # the engine's line on the turns that are left
        return _split_prompt(f"{beginning}\n{end}")[0]
    return CHILD_QUESTION


def _split_prompt(prompt: str) -> tuple[str, str]:
    """Question and text of a prompt that somebody else wrote."""
    lines = [line for line in prompt.split("\n") if line.strip()]
    if not lines:
        return "", ""
    for line in (*lines[:4], *reversed(lines[-4:])):  # not deeper: a text may hold questions too
        marked = re.match(r"\s*(?:question|task):\s*(.+)$", line, re.IGNORECASE)
        if marked:
            return marked[1].strip(), prompt.replace(line, "", 1)
    asked = [line for line in (lines[0], lines[-1]) if line.rstrip().endswith("?")]
    question = asked[0] if asked else lines[0]
    if len(lines) == 1:  # a question and its text on one line
        sentences = re.split(r"(?<=[.!?:])\s+", prompt.strip())
        question = next((s for s in sentences if s.endswith("?")), sentences[0])
    return question, prompt.replace(question, "", 1)
