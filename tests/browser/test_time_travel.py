"""Stepping and the film in a real JupyterLab, by keyboard and by mouse."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.browser.cells import SETUP, ask
from tests.browser.lab import Lab, Notebook

pytestmark = [pytest.mark.browser]

WALK = """\
%load_ext rlm_notebook
from rlm_notebook.lm.protocol import Response
FIRST = "```repl\\nfound = llm_query_batched([f'ask {n}' for n in range(6)])\\nprint(found)\\n```"
LAST = "```repl\\nanswer['content'] = found[1]\\nanswer['ready'] = True\\n```"
class Walk:
    name = "test/walk"
    async def complete(self, request):
        if request.purpose == "sub":
            return Response(request.messages[-1].content.upper())
        return Response(FIRST if len(request.messages) < 3 else LAST)
    async def close(self): ...
walk = Walk()
text = "some text" """
CELL = "%%rlm --context text --model walk --out r {}\nWhat is found?"
SLOT = '.rlm-row[data-kind="slot"]'


@pytest.mark.parametrize("app", ["lab", "notebook"])
def test_a_run_is_stepped_and_edited_in_the_view(
    lab: Lab, page: Page, shots: Path, app: str
) -> None:
    lab.write("steps.ipynb", [WALK, CELL.format("--step"), "print(r.answer)"])
    notebook = Notebook(page, lab, "steps.ipynb", app=app)
    notebook.run_all()
    gate = page.locator(".rlm-gate")
    expect(gate).to_contain_text("turn 1: before the LM call", timeout=60_000)
    expect(page.locator(".rlm-chip")).to_contain_text("paused")
    gate.locator('button[data-action="go"]').click()
    code = gate.locator('textarea[data-name="code"]')
    expect(code).to_have_value(
        "found = llm_query_batched([f'ask {n}' for n in range(6)])\nprint(found)"
    )
    page.screenshot(path=shots / f"gate-{app}.png")
    code.press("Control+Enter")  # by keyboard
    prompts = gate.locator('textarea[data-name="prompts"]')
    prompts.fill('["one"]')
    gate.locator('button[data-action="run"]').click()
    expect(gate).to_contain_text("these are 1 prompts, the code asks 6")
    prompts.fill('["a", "edited by me", "c", "d", "e", "f"]')
    gate.locator('button[data-action="run"]').click()
    notebook.wait_for_end(2)
    expect(gate).to_be_hidden()
    expect(page.locator(".rlm-answer")).to_contain_text("EDITED BY ME")
    page.locator(SLOT).nth(1).click()
    expect(page.locator(".rlm-panel")).to_contain_text("prompt before it was edited")


def test_a_film_is_played_and_scrubbed(lab: Lab, page: Page, shots: Path) -> None:
    lab.write("film.ipynb", [WALK, CELL.format(""), "%rlm_replay r"])
    notebook = Notebook(page, lab, "film.ipynb")
    notebook.run_all()
    notebook.wait_for_end(2)
    cell = notebook.cell(2)
    cell.scroll_into_view_if_needed()  # cells out of sight are empty
    film = cell.locator(".rlm-film")
    expect(film).to_be_visible(timeout=20_000)
    film.get_by_label("to the beginning").click()
    expect(film).to_contain_text("0 ms of")
    expect(cell.locator(SLOT)).to_have_count(0)
    for number in range(1, 4):
        film.get_by_label("one event forward").click()
        expect(film).to_contain_text(f"event {number} of")
    film.get_by_label("one event back").click()
    expect(film).to_contain_text("event 2 of")
    film.get_by_label("play").click()
    expect(cell.locator(SLOT)).to_have_count(6)
    expect(cell.locator(".rlm-chip")).to_contain_text("answered")
    page.screenshot(path=shots / "film.png")
    film.get_by_label("time of the run").press("ArrowLeft")
    expect(cell.locator(".rlm-chip")).not_to_contain_text("answered")


def test_pause_stops_a_run_that_goes_on(lab: Lab, page: Page) -> None:
    lab.write("pause.ipynb", [SETUP, ask(), "print(r.answer)"])
    notebook = Notebook(page, lab, "pause.ipynb")
    notebook.run_all()
    page.locator(SLOT).first.wait_for(timeout=60_000)
    page.locator(".rlm-pause").click()
    expect(page.locator(".rlm-gate")).to_contain_text("paused at turn", timeout=30_000)
    expect(page.locator(".rlm-pause")).to_be_hidden()
    page.locator('.rlm-gate button[data-action="run"]').click()
    notebook.wait_for_end(2)
    expect(page.locator(".rlm-answer")).to_contain_text("48213")


CHILDREN = """\
%load_ext rlm_notebook
from tests.fakes import FakeLM, answering, block
child = answering("context.upper()")
lm = FakeLM(block("deep = rlm_query('left')"), child, answering("deep"))
text = "some text" """


def test_a_child_run_is_stepped_too(lab: Lab, page: Page, shots: Path) -> None:
    ask = CELL.replace("walk", "lm").format("--break \"depth == 1 and 'upper' in code\"")
    lab.write("child.ipynb", [CHILDREN, ask, "print(r.answer)"])
    notebook = Notebook(page, lab, "child.ipynb")
    notebook.run_all()
    gate = page.locator(".rlm-gate")
    code = gate.locator('textarea[data-name="code"]')
    expect(gate).to_contain_text("before the code", timeout=60_000)
    page.screenshot(path=shots / "child.png")
    code.fill("answer['content'], answer['ready'] = 'by hand', True")
    gate.locator('button[data-action="run"]').click()
    notebook.wait_for_end(2)
    expect(page.locator(".rlm-answer")).to_contain_text("by hand")


def test_a_run_is_forked_from_its_view_and_the_fork_again(
    lab: Lab, page: Page, shots: Path
) -> None:
    path = lab.write("fork.ipynb", [WALK, CELL.format(""), "print('end')"])
    notebook = Notebook(page, lab, "fork.ipynb")
    notebook.run_all()
    notebook.wait_for_end(2)
    views = notebook.cell(1).locator(".rlm-view")
    first, second, third = (views.nth(number) for number in range(3))
    first.locator(SLOT).nth(1).click()
    first.locator(".rlm-fork-button").click()
    prompt = first.locator('.rlm-fork textarea[data-name="prompt"]')
    expect(prompt).to_have_value("ask 1")
    prompt.fill("other words")
    prompt.press("Control+Enter")
    expect(first.locator(".rlm-fork-done")).to_contain_text("run 1 begins below")
    expect(second.locator(".rlm-answer")).to_contain_text("OTHER WORDS")
    expect(second.locator(".rlm-origin")).to_contain_text("slot 1; prompt changed")
    expect(first.locator(".rlm-answer")).to_contain_text("ASK 1")
    second.locator('.rlm-row[data-kind="turn"]').last.click()
    second.locator(".rlm-fork-button").click()
    code = second.locator('.rlm-fork textarea[data-name="code"]')
    code.fill("answer = {'content': found[0] + ' again', 'ready': True}")
    second.get_by_role("button", name="Fork the run here").click()
    expect(third.locator(".rlm-answer")).to_contain_text("ASK 0 again")
    expect(third.locator(".rlm-origin")).to_contain_text("at turn 2; code changed")
    third.scroll_into_view_if_needed()
    page.screenshot(path=shots / "forks.png")
    notebook.save()
    saved = path.read_text(encoding="utf-8")
    assert "OTHER WORDS" in saved
    assert "ASK 0 again" in saved
    assert "application/vnd.jupyter.widget-view+json" not in saved
    page.locator(".jp-Notebook").press("Escape")
    notebook.run_all()  # the cell shows one run again
    expect(views).to_have_count(1, timeout=30_000)
