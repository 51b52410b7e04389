// The header: state, running totals, Stop; the answer when there is one; warnings.

import { cost, count, duration, plural, stateOf, tokens } from "../model/format";
import type { Store } from "../model/store";
import { element, setAttribute, setText } from "./dom";

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
  private answer = element("div", "rlm-answer");
  private warnings = element("div", "rlm-warnings");
  private stopping = false;

  constructor(onStop: () => void) {
    const line = element("div", "rlm-line");
    line.append(this.chip, this.totals, this.stop);
    this.root.append(line, this.answer, this.warnings);
    this.stop.type = "button";
    this.stop.title = "end the run now; the trace is kept";
    this.stop.addEventListener("click", () => {
      this.stopping = true;
      this.stop.disabled = true;
      setText(this.stop, "stopping…");
      onStop();
    });
  }

  update(store: Store, now: number): void {
    const summary = store.summary;
    this.stop.hidden = summary === null || store.ended;
    if (summary === null) {
      setText(this.chip, "…");
      return;
    }
    const running = !store.ended;
    const state = running ? "running" : summary.state;
    const words = OUTCOMES[summary.outcome] ?? stateOf(summary.state).title;
    const outcome = summary.stopped_by ? `${words} (${summary.stopped_by})` : words;
    setText(this.chip, `${stateOf(state).symbol} ${running ? (this.stopping ? "stopping" : "running") : outcome}`);
    setAttribute(this.root, "data-state", state);
    setAttribute(this.root, "data-outcome", summary.outcome);
    const parts = [duration(now), plural(summary.calls, "call")];
    if (running) parts.push(`${count(summary.in_flight)} in flight`);
    if (summary.waiting > 0) parts.push(`${count(summary.waiting)} waiting`);
    if (summary.errors > 0) parts.push(plural(summary.errors, "error"));
    parts.push(tokens(summary));
    if (cost(summary)) parts.push(cost(summary));
    setText(this.totals, parts.join(" · "));
    setText(this.answer, running ? "" : summary.answer);
    setText(this.warnings, summary.warnings.join("\n"));
  }
}
