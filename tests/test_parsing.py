"""Code blocks and final answers out of the text of a root model."""

from __future__ import annotations

import pytest

from rlm_notebook.parsing import Final, parse_reply


def test_marked_blocks_are_found_in_order_and_others_are_not_run() -> None:
    text = "a\n```repl\nx = 1\n```\nb\n```python\ny = 2\n```\n```json\n{}\n```\n```\nz\n```"
    reply = parse_reply(text)
    assert reply.blocks == ["x = 1", "y = 2"]
    assert reply.other == 2
    assert not reply.cut


@pytest.mark.parametrize("mark", ["repl", "REPL", "python", "Python", "py"])
def test_the_mark_is_read_in_any_case(mark: str) -> None:
    assert parse_reply(f"```{mark}\nx\n```").blocks == ["x"]


def test_a_fence_line_inside_a_string_does_not_end_the_block() -> None:
    code = 'text = """\n```\nnot the end\n```python\n"""\nprint(text)'
    assert parse_reply(f"```repl\n{code}\n```\nafter").blocks == [code]


def test_a_block_with_a_syntax_error_ends_at_its_first_fence_and_goes_back_whole() -> None:
    reply = parse_reply("```repl\nx = (\n```\ntext\n```repl\ny = 1\n```")
    assert reply.blocks == ["x = (", "y = 1"]


@pytest.mark.parametrize(
    "text",
    [
        "  ```repl\n  if x:\n      y\n  ```",
        "```repl\r\nif x:\r\n    y\r\n```\r\n",
        "```repl\n    if x:\n        y\n```",
        "\ufeff```repl\nif x:\n    y\n```",
        "~~~repl\nif x:\n    y\n~~~",
        "````repl\nif x:\n    y\n````",
    ],
)
def test_indented_crlf_and_other_fences_give_the_same_code(text: str) -> None:
    assert parse_reply(text).blocks == ["if x:\n    y"]


@pytest.mark.parametrize("reason", ["length", None])
def test_a_block_that_was_cut_never_runs(reason: str | None) -> None:
    reply = parse_reply("```repl\nx = 1\n```\n```repl\ny = 2\nz =", reason)
    assert reply.blocks == ["x = 1"]
    assert reply.cut


def test_a_whole_block_without_its_last_fence_runs_only_if_the_reply_ended_by_itself() -> None:
    assert parse_reply("```repl\nx = 1\n", "stop").blocks == ["x = 1\n"]
    assert parse_reply("```repl\nx = 1\n", "length").cut


@pytest.mark.parametrize(
    "text",
    [
        "<think>\n```repl\nbad\n```\n</think>\n```repl\ngood\n```",
        "```repl\nbad\n```\n</think>\n```repl\ngood\n```",
        "<think>a</think><think>\n```repl\nbad\n```\n</think>\n```repl\ngood\n```",
    ],
)
def test_a_block_in_the_thinking_is_not_run(text: str) -> None:
    assert parse_reply(text).blocks == ["good"]


def test_thinking_that_never_ends_holds_no_code() -> None:
    assert parse_reply("<think>\n```repl\nbad\n```\nFINAL(x)") == parse_reply("")


@pytest.mark.parametrize(
    ("text", "final"),
    [
        ("FINAL(42)", Final("42")),
        ("so\nFINAL(f(x) (and (more)))\n", Final("f(x) (and (more))")),
        ('FINAL({"a": [1, 2]})', Final('{"a": [1, 2]}')),
        ("FINAL(line 1\nline 2)", Final("line 1\nline 2")),
        ("FINAL(a (b) c) and then some prose", Final("a (b) c")),
        ("FINAL(never closed", Final("never closed")),
        ('FINAL_VAR("result")', Final("result", is_variable=True)),
        ("FINAL_VAR(result)", Final("result", is_variable=True)),
    ],
)
def test_a_final_answer_in_text_is_returned_unchanged(text: str, final: Final) -> None:
    assert parse_reply(text).final == final


def test_a_final_answer_of_five_megabytes_is_returned_whole() -> None:
    text = "x(y)" * 1_250_000
    assert parse_reply(f"FINAL({text})").final == Final(text)


def test_a_final_answer_inside_a_code_block_is_code() -> None:
    assert parse_reply("```repl\nFINAL(1)\n```").final is None
