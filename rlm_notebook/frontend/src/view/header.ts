// The header: state, running totals, Stop; the answer when there is one; warnings.

import { cost, count, duration, plural, stateOf, tokens } from "../model/format";
import type { Summary } from "../model/messages";
import type { Store } from "../model/store";
import { element, setAttribute, setText } from "./dom";
import type { UiState } from "./tree";

const OUTCOMES: Record<string, string> = {
  answered: "answered",
  answered_unseen: "answered before the output was seen",
  fallback: "answered after the turns ran out",
  no_answer: "no answer",
  stopped: "stopped",
  error: "failed",
};

export class HeaderView {
  readonly root = element("div", "rlm-header");
  private chip = element("span", "rlm-chip");
  private totals = element("span", "rlm-totals");
  private stop = element("button", "rlm-stop", "Stop");
  private pause = element("button", "rlm-pause", "Pause");
  private answer = element("div", "rlm-answer");
  private warnings = element("div", "rlm-warnings");
  private origin = element("div", "rlm-origin");

  constructor(private ui: UiState, onStop: () => void, onPause: () => void) {
    const line = element("div", "rlm-line");
    line.append(this.chip, this.totals, this.pause, this.stop);
    this.pause.type = "button";
    this.pause.title = "stand still before the next call, block or batch";
    this.pause.addEventListener("click", onPause);
    this.root.append(line, this.origin, this.answer, this.warnings);
    this.stop.type = "button";
    this.stop.title = "end the run now; the trace is kept";
    this.stop.addEventListener("click", () => {
      ui.stopping = true;
      this.updateStop();
      onStop();
    });
  }

  update(store: Store, now: number): void {
    const summary = store.summary;
    this.stop.hidden = summary === null || store.ended;
    this.updateStop();
    const paused = store.paused.length > 0;
    this.pause.hidden = this.stop.hidden || store.pausing === null || paused || this.ui.stopping;
    this.pause.disabled = store.pausing === true;
    setText(this.pause, store.pausing === true ? "pausing…" : "Pause");
    if (summary === null) {
      setText(this.chip, "…");
      return;
    }
    const running = !store.ended;
    const state = running ? "running" : summary.state;
    const words = OUTCOMES[summary.outcome] ?? stateOf(summary.state).title;
    const outcome = summary.stopped_by ? `${words} (${summary.stopped_by})` : words;
    setText(this.chip, `${stateOf(state).symbol} ${running ? (this.ui.stopping ? "stopping" : paused ? "paused" : "running") : outcome}`);
    setAttribute(this.root, "data-state", state);
    setAttribute(this.root, "data-outcome", summary.outcome);
    this.updateTotals(summary, running, now);
    setText(this.origin, summary.origin);
    setText(this.answer, running ? "" : summary.answer);
    setText(this.warnings, summary.warnings.join("\n"));
  }

  private updateStop(): void {
    this.stop.disabled = this.ui.stopping;
    setText(this.stop, this.ui.stopping ? "stopping…" : "Stop");
  }

  /** One element a number, so that a line never breaks within one. */
  private updateTotals(summary: Summary, running: boolean, now: number): void {
    const errors = summary.errors > 0 ? plural(summary.errors, "error") : "";
    const parts = [
      duration(now),
      plural(summary.calls, "call"),
      running ? `${count(summary.in_flight)} in flight` : "",
      summary.waiting > 0 ? `${count(summary.waiting)} waiting` : "",
      errors,
      tokens(summary),
      cost(summary),
    ].filter((part) => part !== "");
    while (this.totals.children.length > parts.length) this.totals.lastElementChild?.remove();
    parts.forEach((part, i) => {
      const node = this.totals.children[i] ?? this.totals.appendChild(emptyPart());
      const [number, dot] = node.children as unknown as [HTMLElement, HTMLElement];
      setText(number, part);
      setText(dot, i + 1 === parts.length ? "" : " · ");
      setAttribute(number, "class", part === errors ? "rlm-errors" : "");
    });
  }
}

function emptyPart(): HTMLElement {
  const part = element("span", "rlm-part");
  part.append(element("span"), element("span"));
  return part;
}
