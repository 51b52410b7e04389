"""What the root model is told: the system prompt and the messages of each turn."""

from __future__ import annotations

from collections.abc import Sequence

from rlm_notebook.lm.protocol import Message

BATCH_CEILING = 20
"""Prompts in one batch, as the RLM paper's system prompt advises."""
PROMPT_CEILING = 100_000
"""Characters in one prompt, as the RLM paper's system prompt advises."""

QUESTION = "Question:\n"
CONTEXT = "\n\nContext: "

_SYSTEM = """\
You answer a question about a context that may be far longer than what you can read at once. \
You work in turns with a Python REPL. In each turn you write code, it is run, and you are shown \
what it printed. Variables stay from turn to turn.

In the REPL there are:
- `context`: the whole context. You are told its type and size, not its content: look at it in pieces.
- `llm_query(prompt)`: asks a language model one question and returns its answer as a str. It sees \
nothing but the prompt, so put the text it needs into the prompt, at most about {prompt_ceiling:,} \
characters.
- `llm_query_batched(prompts)`: asks many prompts at once and returns the answers in the same order. \
Use it whenever calls do not depend on each other: a loop of `llm_query` takes as long as all calls \
together. Give it about {batch_ceiling} prompts at a time. A few large prompts are better than hundreds of tiny \
ones. A prompt that failed has an answer that starts with `Error:`; the others are not affected.
{recursion}{tools}\
- `SHOW_VARS()`: lists your variables.
- `answer`: a dict. When you know the answer, set `answer["content"]` to it and then \
`answer["ready"] = True`. This ends the work.

Write code in fenced blocks marked `repl`:
```repl
print(type(context), len(context))
print(context[:500])
```
Calls that need the result of an earlier call cannot share a batch: put them into a later step.
Only what you print is shown to you, and long output is cut, so print what you need and no more. \
Do not write down what you expect the code to print: run it and read. \
Look at the context first, then split it, ask about the parts, and put the parts together. \
Give the final answer only after you have seen the output it rests on.
"""

_RECURSION = """\
- `rlm_query(prompt)` and `rlm_query_batched(prompts)`: like the two above, but each prompt is given \
to a worker like you, with a REPL of its own in which the prompt is its `context`. Use them for parts \
that need several steps of their own; they are slower and cost more.
"""

_NO_RECURSION = """\
- `rlm_query(prompt)` and `rlm_query_batched(prompts)`: here the same as the two above.
"""


def system_prompt(*, can_recurse: bool, tools: Sequence[tuple[str, str]] = ()) -> Message:
    """The system message of a run.

    Parameters
    ----------
    can_recurse
        False at the depth limit.
    tools
        Signature and description of the user's own functions.
    """
    text = _SYSTEM.format(
        prompt_ceiling=PROMPT_CEILING,
        batch_ceiling=BATCH_CEILING,
        recursion=_RECURSION if can_recurse else _NO_RECURSION,
        tools="".join(
            f"- `{signature}`: {description or 'a function of the user'}\n"
            for signature, description in tools
        ),
    )
    return Message("system", text)


def first_message(question: str, context: str, max_iterations: int) -> Message:
    """The question, and the description (never the content) of the context."""
    return Message(
        "user",
        f"{QUESTION}{question}{CONTEXT}{context}\n\n"
        f"You have {max_iterations} turns. Begin by looking at the context; do not answer yet.",
    )


def question_of(messages: tuple[Message, ...]) -> str:
    """The question back out of the first user message ('' if there is none)."""
    for message in messages:
        if message.role == "user" and message.content.startswith(QUESTION):
            return message.content[len(QUESTION) :].rpartition(CONTEXT)[0]
    return ""


def output_message(blocks: list[str], turn: int, max_iterations: int) -> Message:
    """What the code blocks of a turn printed. ``turn`` counts from 1."""
    left = max_iterations - turn
    when = "This is your last turn." if left == 1 else f"{left} turns are left."
    return Message("user", "\n\n".join(blocks) + f"\n\n{when}")


def block_output(number: int, of: int, text: str) -> str:
    """The heading and the output of one code block; ``number`` counts from 1."""
    heading = "REPL output" if of == 1 else f"REPL output of block {number} of {of}"
    return f"{heading}:\n{text}" if text else f"{heading}: (nothing was printed)"


def truncated(text: str, limit: int) -> str:
    """The text, or its head and tail with a visible mark between them. ``limit`` in characters."""
    if len(text) <= limit:
        return text
    head = limit * 3 // 4
    tail = limit - head
    cut = len(text) - head - tail
    return f"{text[:head]}\n[... {cut:,} of {len(text):,} characters cut here ...]\n{text[-tail:]}"


CHILD_QUESTION = "Answer the request in the context."
"""The question of a child RLM; its context is the prompt it was given."""

NO_CODE = (
    "There was no code block in your reply. Write code in a block that starts with ```repl; "
    'to answer, set answer["content"] and answer["ready"] = True in it.'
)
EMPTY_REPLY = "Your reply was empty. Write the next code block."
CUT_REPLY = (
    "Your reply was cut at its length limit inside a code block, so that block was not run. "
    "Write it again, shorter."
)
UNSEEN_FINAL = (
    "You gave a final answer in the same reply as code, before seeing the code's output; "
    "it was not accepted. Read the output, then answer."
)
SKIPPED = "The user skipped this block: it did not run."
NOT_READY = 'answer["ready"] was set without answer["content"]: set the content first.'


def final_request(question: str) -> Message:
    """The request for an answer when the turns have run out."""
    return Message(
        "user",
        "There are no turns left. Answer the question now, as well as you can, from what you have "
        f"seen. Write only the answer, no code.\n\n{QUESTION}{question}",
    )
