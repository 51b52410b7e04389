"""What a model is shown of a program's output."""

from __future__ import annotations

import pytest

from rlm_notebook import RLM
from rlm_notebook.repl.output import shown
from tests.fakes import FakeLM, answering, block


@pytest.mark.parametrize(
    ("printed", "text"),
    [
        ("plain\n\ttext é\n", "plain\n\ttext é\n"),
        ("\x1b[31mred\x1b[0m \x1b[1;38;5;7mx\x1b[K", "red x"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\ \x1b]0;title\x07y", "link y"),
        ("10%\r 50%\r100%\n", "100%\n"),
        ("long line\rshort", "shortline"),
        ("a\r\nb\r\n", "a\nb\n"),
        ("progress [###   ]\rprogress [######]\ndone", "progress [######]\ndone"),
        ("ab\x08\x08cd", "cd"),
        ("a\x00b\x07c\x7f", "abc"),
        ("\x1b", ""),
        ("", ""),
    ],
)
def test_colours_and_redrawn_lines_are_taken_out(printed: str, text: str) -> None:
    assert shown(printed) == text


def test_the_model_sees_the_last_state_and_the_trace_keeps_all() -> None:
    code = "for i in range(3): print(f'\\x1b[32m{i}0%\\x1b[0m', end='\\r')\nprint()"
    lm = FakeLM(block(code), answering("1"))
    result = RLM(lm).completion("c", "q")
    assert "REPL output:\n20%\n" in lm.roots[1].messages[-1].content
    code_span = next(result.trace.find(kind="code"))
    assert "\x1b[32m00%\x1b[0m\r" in code_span.attrs["stdout"]
