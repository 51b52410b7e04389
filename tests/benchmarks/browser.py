"""Times between a real browser and the kernel, in JupyterLab, while a batch of 200 slots runs."""

from __future__ import annotations

import json
import shutil
import statistics
import tempfile
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, sync_playwright

from tests.benchmarks import our_run
from tests.benchmarks.schedule import lognormal
from tests.browser.lab import Lab, Notebook, launch
from tests.servers.handle import OpenAIServer
from tests.servers.openai_server import Rule

SLOTS = 200
LATENCIES = lognormal(SLOTS, median=0.2, sigma=1.0, seed=7)
CLICKS = 15

SETUP = f"""\
%load_ext rlm_notebook
import json, time
import ipywidgets
from IPython.display import display
from tests.benchmarks import our_run
context = our_run.context({SLOTS}, 1)
clicks = []
button = ipywidgets.Button(description="bench-click")
button.on_click(lambda _: clicks.append(time.time()))
display(button)
"""
REPORT = """\
zero, slots = our_run.started_at(result), result.trace.slots
batch = result.trace.batches[0]
print("KERNEL", json.dumps({
    "clicks": clicks,
    "batch": [zero + batch.submitted * 1e-9, zero + batch.ended * 1e-9],
    "ends": [zero + slot.ended * 1e-9 for slot in slots],
}), "END")
"""
LISTEN = """
(() => {
const now = () => (performance.timeOrigin + performance.now()) / 1000;
window.bench = {clicks: [], messages: []};
document.addEventListener("click", (event) => {
  if (event.target.closest(".jupyter-button")) window.bench.clicks.push(now());
}, true);

// the header of a kernel message, in both of the server's websocket protocols
function header(data) {
  if (typeof data === "string") return JSON.parse(data).header;
  const view = new DataView(data);
  const offset = (index) => Number(view.getBigUint64(8 * (index + 1), true));
  return JSON.parse(new TextDecoder().decode(data.slice(offset(1), offset(2))));
}
window.WebSocket = class extends WebSocket {
  constructor(...given) {
    super(...given);
    if (!this.url.includes("/channels")) return;
    this.addEventListener("message", (event) => {
      const arrived = now(), sent = header(event.data);
      if (sent.msg_type === "comm_msg")
        window.bench.messages.push([Date.parse(sent.date) / 1000, arrived]);
    });
  }
};
})();
"""


def measure(server: OpenAIServer, root: Rule) -> dict[str, float]:
    """Medians in milliseconds."""
    server.script(root, Rule(delays=LATENCIES))
    folder = Path(tempfile.mkdtemp(prefix="rlm-bench-"))
    with Lab(folder) as lab, sync_playwright() as playwright:
        lab.write("bench.ipynb", [SETUP, our_run.cell(server.url), REPORT])
        browser = launch(playwright)
        page = browser.new_page(viewport={"width": 1400, "height": 1600})
        page.add_init_script(LISTEN)
        seen, kernel = click_through(page, lab)
        browser.close()
    shutil.rmtree(folder, ignore_errors=True)
    return {
        "click_latency": click_latency(seen["clicks"], kernel["clicks"], kernel["batch"]),
        "event_to_browser": event_to_browser(kernel["ends"], seen["messages"]),
    }


def click_through(page: Page, lab: Lab) -> tuple[dict[str, Any], dict[str, Any]]:
    """Run the cells, click while the second runs: what the browser saw, what the kernel saw."""
    notebook = Notebook(page, lab, "bench.ipynb")
    notebook.run_all()
    button = page.locator(".jupyter-button", has_text="bench-click")
    button.wait_for()
    page.locator('.rlm-row[data-kind="batch"]').wait_for()
    for _ in range(CLICKS):
        button.click()
        page.wait_for_timeout(100)
    report = page.locator(".jp-OutputArea-output", has_text="KERNEL")
    report.wait_for(timeout=60_000)
    text = report.inner_text().partition("KERNEL ")[2].partition(" END")[0]
    return page.evaluate("window.bench"), json.loads(text)


def click_latency(pressed: list[float], heard: list[float], batch: list[float]) -> float:
    """Milliseconds from a click to its Python callback, while the batch runs."""
    if len(pressed) != CLICKS or len(heard) != CLICKS:
        raise RuntimeError(f"{CLICKS} clicks, {len(pressed)} seen, {len(heard)} heard")
    found = [
        (there - here) * 1000
        for here, there in zip(pressed, heard, strict=True)
        if batch[0] < here < batch[1]
    ]
    if len(found) < CLICKS // 2:
        raise RuntimeError(f"only {len(found)} clicks fell into the batch")
    return statistics.median(found)


def event_to_browser(ends: list[float], messages: list[tuple[float, float]]) -> float:
    """Milliseconds from the end of a slot to the arrival of the message that carries it.

    That is the first message of the view that the kernel sent after the event: the view sends
    what has changed, up to 200 rows. (Nothing else sends comm messages meanwhile.)
    """
    found = []
    for end in ends:
        arrival = next((arrived for sent, arrived in messages if sent >= end), None)
        if arrival is None:
            raise RuntimeError("the last events never reached the browser")
        found.append((arrival - end) * 1000)
    return statistics.median(found)
