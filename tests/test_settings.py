"""Settings: one table for options, config, environment and arguments."""

from __future__ import annotations

import pytest

from rlm_notebook.errors import UsageError
from rlm_notebook.options import OptionParser, given_settings, setting_options, split_line
from rlm_notebook.settings import Settings, fields, from_environment, make_settings


def test_defaults_are_those_of_the_field() -> None:
    settings = make_settings()
    assert settings == Settings()
    assert settings.batch_max_concurrent == 16
    assert settings.max_concurrent_subcalls == 4
    assert settings.model == "builtin/extractive"


def test_every_setting_has_an_option_and_a_help_sentence() -> None:
    assert all(field.help for field in fields())
    parser = OptionParser(prog="%%rlm", add_help=False)
    setting_options(parser)
    shown = parser.format_help()
    assert all(field.option in shown for field in fields())
    for unit in ("--timeout SECONDS", "--max-cost USD", "--max-depth N", "--model TEXT"):
        assert unit in shown


def test_environment_variables_are_defaults_and_arguments_win(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RLM_MAX_DEPTH", "3")
    monkeypatch.setenv("RLM_TIMEOUT", "2.5")
    assert from_environment() == {"max_depth": 3, "timeout": 2.5}
    assert make_settings(timeout="none").timeout is None
    assert make_settings(max_depth=1).max_depth == 1


@pytest.mark.parametrize(
    ("name", "value", "part"),
    [
        ("max_depth", "x", "expected `int`"),
        ("max_depth", 0, ">= 1"),
        ("timeout", -1, "> 0"),
        ("failure_rule", "retry", "'retry'"),
        ("nonsense", 1, "no setting 'nonsense'"),
    ],
)
def test_a_wrong_value_gives_one_line_that_says_what_is_right(
    name: str, value: object, part: str
) -> None:
    with pytest.raises(UsageError) as caught:
        make_settings(**{name: value})
    assert part in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("--context corpus --out r", ["--context", "corpus", "--out", "r"]),
        ("--context docs['a b'][: 3]", ["--context", "docs['a b'][: 3]"]),
        ("--context f(a, 'x)')", ["--context", "f(a, 'x)')"]),
        ('--context "my file.txt"', ["--context", "my file.txt"]),
        ('--simulate="errors=0.1 seed=2"', ["--simulate=errors=0.1 seed=2"]),
        ("--context 'a' + 'b'", ["--context", "a", "+", "b"]),
        ("--context 'a'+'b'", ["--context", "'a'+'b'"]),
        ("", []),
    ],
)
def test_a_line_is_split_as_a_user_means_it(line: str, words: list[str]) -> None:
    assert split_line(line) == words


def test_an_open_quote_is_named() -> None:
    with pytest.raises(UsageError, match="closing '"):
        split_line("--context 'abc")


def test_an_unknown_option_names_the_closest_one() -> None:
    parser = OptionParser(prog="%%rlm", add_help=False)
    setting_options(parser)
    with pytest.raises(UsageError, match="did you mean --max-depth"):
        parser.parse_args(["--mx-depth", "3"])
    given = given_settings(parser.parse_args(["--max-depth", "3"]))
    assert given == {"max_depth": 3}
