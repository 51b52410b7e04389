"""Stepping and the film in a real JupyterLab, by keyboard and by mouse."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

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


def test_a_run_is_stepped_and_edited_in_the_view(lab: Lab, page: Page, shots: Path) -> None:
    lab.write("steps.ipynb", [WALK, CELL.format("--step"), "print(r.answer)"])
    notebook = Notebook(page, lab, "steps.ipynb")
    notebook.run_all()
    gate = page.locator(".rlm-gate")
    expect(gate).to_contain_text("turn 1: before the LM call", timeout=60_000)
    expect(page.locator(".rlm-chip")).to_contain_text("paused")
    gate.locator('button[data-action="go"]').click()
    code = gate.locator('textarea[data-name="code"]')
    expect(code).to_have_value(
        "found = llm_query_batched([f'ask {n}' for n in range(6)])\nprint(found)"
    )
    page.screenshot(path=shots / "gate.png")
    code.press("Control+Enter")  # by keyboard
    prompts = gate.locator('textarea[data-name="prompts"]')
    prompts.fill('["one"]')
    gate.locator('button[data-action="run"]').click()
    expect(gate).to_contain_text("these are 1 prompts, the code asks 6")
    prompts.fill('["a", "edited by me", "c", "d", "e", "f"]')
    gate.locator('button[data-action="run"]').click()
    notebook.wait_for_end(2)
    expect(gate).to_be_hidden()
    assert "EDITED BY ME" in notebook.cell(2).inner_text()
    page.locator(SLOT).nth(1).click()
    expect(page.locator(".rlm-panel")).to_contain_text("prompt before it was edited")


def test_a_film_is_played_and_scrubbed(lab: Lab, page: Page, shots: Path) -> None:
    lab.write("film.ipynb", [WALK, CELL.format(""), "%rlm_replay r"])
    notebook = Notebook(page, lab, "film.ipynb")
    notebook.run_all()
    notebook.wait_for_end(2)
    cell = notebook.cell(2)
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
