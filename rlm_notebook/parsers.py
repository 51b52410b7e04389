"""What the magics take on their lines."""

from __future__ import annotations

import argparse

from rlm_notebook.errors import UsageError
from rlm_notebook.options import OptionParser, setting_options


def cell_parser() -> OptionParser:
    """Options of ``%%rlm``."""
    parser = OptionParser(
        prog="%%rlm",
        add_help=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description=(
            "Ask a question about a long context. The cell's text is the question.\n\n"
            "    %%rlm --context corpus --out result\n"
            "    Which module defines ChainMap?\n\n"
            "The answer is the cell's value (also in _), the live call tree stands above it."
        ),
    )
    group = parser.add_argument_group("this run")
    group.add_argument(
        "--context",
        metavar="EXPR",
        help="what to ask about: a Python expression (str, list of str, dict, chat messages, "
        "bytes, table, array), several names (a,b), a file, or a glob such as 'docs/**/*.md'",
    )
    group.add_argument(
        "--tools",
        metavar="NAMES",
        help="functions of yours that the model's code may call, for instance fetch_page,score",
    )
    group.add_argument(
        "--session",
        metavar="NAME",
        help="keep the REPL between cells: its variables, context_0, context_1..., history; "
        "%%rlm_sessions lists and closes them",
    )
    group.add_argument("--out", metavar="NAME", help="variable that gets the result")
    group.add_argument("--trace", metavar="PATH", help="file to write the trace to")
    _going_options(group)
    setting_options(parser)
    return parser


def _going_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--background",
        action="store_true",
        help="return at once; the run goes on, %%rlm_stop ends it",
    )
    group.add_argument(
        "--step",
        action="store_true",
        help="stop before each LM call, code block and batch, and at failed slots: look, edit, "
        "go on (in the view, or with %%rlm_step, %%rlm_continue and %%rlm_edit)",
    )
    group.add_argument(
        "--break",
        dest="breaks",
        action="append",
        default=[],
        metavar="WHERE",
        help="stop there: turn=3, error, or an expression of prompt, code, response, error, turn, "
        "depth: \"'password' in prompt\"; may be given several times",
    )


def step_parser() -> OptionParser:
    """Options of ``%rlm_step``."""
    from rlm_notebook.gates import ACTIONS, MODES  # not needed to load the extension

    parser = OptionParser(prog="%rlm_step", add_help=False)
    parser.add_argument(
        "action",
        nargs="?",
        default="go",
        choices=(*MODES, *ACTIONS.values(), "stop"),
    )
    parser.add_argument("--run", type=int, metavar="N", help="number of the background run")
    return parser


def edit_parser() -> OptionParser:
    """Options of ``%rlm_edit``."""
    parser = OptionParser(prog="%rlm_edit", add_help=False)
    parser.add_argument("what", help="code, prompt, prompts, response or model")
    parser.add_argument("text", nargs="+", help="the new text, or a variable that holds it")
    parser.add_argument("--run", type=int, metavar="N", help="number of the background run")
    return parser


def config_parser() -> OptionParser:
    """Options of ``%rlm_config``."""
    parser = OptionParser(prog="%rlm_config", add_help=False)
    parser.add_argument("--reset", action="store_true", help="forget what %%rlm_config has set")
    setting_options(parser)
    return parser


def _again_parser(name: str, description: str) -> OptionParser:
    parser = OptionParser(
        prog=f"%{name}",
        add_help=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description=description,
    )
    parser.add_argument("run", metavar="RUN", help="file of the trace, or a variable that holds it")
    return parser


def _run_options(parser: OptionParser) -> None:
    group = parser.add_argument_group("this run")
    group.add_argument("--context", metavar="EXPR", help="what it is about, if that was not kept")
    group.add_argument("--out", metavar="NAME", help="variable that gets the result")
    _going_options(group)
    parser.epilog = "Settings may be given as with %%rlm."


def resume_parser() -> OptionParser:
    """Options of ``%rlm_resume``, but for the settings."""
    parser = _again_parser(
        "rlm_resume",
        "Go on with a run that was stopped, crashed or failed, in the same file. What is recorded "
        "is not\nasked again; calls that were in flight are. Settings may change: --timeout none.",
    )
    _run_options(parser)
    return parser


def fork_parser() -> OptionParser:
    """Options of ``%rlm_fork``, but for the settings."""
    parser = _again_parser(
        "rlm_fork",
        "A run of its own that is the same up to a place, and live from there on.\n\n"
        '    %rlm_fork run.rlm.jsonl --turn 3 --prompt "Look at the appendix, too."',
    )
    group = parser.add_argument_group(
        "the place and what is changed there (each text may be that of a variable)"
    )
    group.add_argument("--turn", type=int, metavar="N", help="from this turn on, from 1")
    group.add_argument("--slot", metavar="B.S", help="of that turn: batch from 1, slot from 0")
    group.add_argument("--span", type=int, metavar="ID", help="any span, by its id")
    group.add_argument("--code", metavar="CODE", help="run this in the turn")
    group.add_argument("--response", metavar="TEXT", help="the model's answer there")
    group.add_argument(
        "--prompt", metavar="TEXT", help="a text the model is told besides; of slots: their prompt"
    )
    group.add_argument("--trace", metavar="PATH", help="file to write the trace to")
    _run_options(parser)
    return parser


def replay_parser() -> OptionParser:
    """Options of ``%rlm_replay``."""
    parser = _again_parser("rlm_replay", "Show a recorded run, or prove that it is the same again.")
    parser.add_argument(
        "--check",
        action="store_true",
        help="run the engine again with the recorded answers, and name the first difference",
    )
    return parser


def check_name(out: str | None) -> None:
    """Raise UsageError if ``--out`` is no name of a variable."""
    if out is not None and not out.isidentifier():
        raise UsageError(f"--out {out}: not a name of a variable")
