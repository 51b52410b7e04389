// What a row holds: its times, and its texts, the long ones part by part.

import type { Field, Incoming, Outgoing, Row } from "../model/messages";
import { count, duration, stateOf } from "../model/format";
import { latency, queueWait } from "../model/scale";
import type { Store } from "../model/store";
import { element, setText } from "./dom";

const APPROXIMATE =
  "batch duration / number of prompts: what the reference library reports for every slot; not a latency";

export class PanelView {
  readonly root = element("div", "rlm-panel");
  private title = element("div", "rlm-title");
  private facts = element("div", "rlm-facts");
  private texts = element("div", "rlm-texts");
  private shown: number | null = null;
  private shownState = "";

  constructor(private store: Store, private send: (message: Outgoing) => void, onClose: () => void) {
    const close = element("button", "rlm-close", "×");
    close.type = "button";
    close.title = "close (Escape)";
    close.addEventListener("click", onClose);
    const top = element("div", "rlm-panel-top");
    top.append(this.title, close);
    this.root.append(top, this.facts, this.texts);
    this.root.hidden = true;
  }

  /** Show a row, or nothing; asks for its texts when it is another row or its state has changed. */
  update(selected: number | null, now: number): void {
    const row = selected === null ? undefined : this.store.rows.get(selected);
    this.root.hidden = row === undefined;
    if (row === undefined) {
      this.shown = null;
      return;
    }
    if (this.shown !== row.id) this.texts.replaceChildren();
    if (this.shown !== row.id || this.shownState !== row.state) {
      this.send({ type: "fields", id: row.id });
    }
    this.shown = row.id;
    this.shownState = row.state;
    setText(this.title, `${stateOf(row.state).symbol} ${row.label} — ${stateOf(row.state).title}`);
    this.updateFacts(row, now);
  }

  receive(message: Incoming): void {
    if (message.type === "fields" && message.id === this.shown) {
      this.texts.replaceChildren(...message.fields.map((field) => this.fieldView(message.id, field)));
    } else if (message.type === "text" && message.id === this.shown) {
      for (const view of this.texts.children) {
        if (!(view instanceof HTMLElement) || view.dataset.name !== message.name) continue;
        const body = view.querySelector("pre");
        if (body === null || codePoints(body.textContent ?? "") !== message.offset) continue;
        body.textContent += message.text;
        this.updateMore(view, message.id, message.name, message.chars);
      }
    }
  }

  private updateFacts(row: Row, now: number): void {
    const facts: [string, string, string?][] = [];
    const own = latency(row, now);
    const wait = queueWait(row, now);
    if (row.kind === "slot" || row.kind === "lm_call" || wait >= 1) {
      facts.push(["queue wait", duration(wait)]);
      if (own !== null) facts.push(["latency", duration(own)]);
    } else if (own !== null) facts.push(["duration", duration(own)]);
    const batch = row.parent === null ? undefined : this.store.rows.get(row.parent);
    const approximate = row.kind === "batch" ? row.approximate : batch?.approximate;
    if (approximate != null) facts.push(["approximate latency", duration(approximate), APPROXIMATE]);
    facts.push(["started", `${duration(row.started ?? row.submitted ?? 0)} into the run`]);
    if (row.model) facts.push(["model", row.model]);
    if (row.tokens_in != null || row.tokens_out != null) {
      facts.push(["tokens", `${count(row.tokens_in ?? 0)} in, ${count(row.tokens_out ?? 0)} out`]);
    }
    const text = facts.map((fact) => fact.join("\u0000")).join("\u0001");
    if (this.facts.dataset.text === text) return;
    this.facts.dataset.text = text;
    this.facts.replaceChildren(
      ...facts.map(([name, value, explanation]) => {
        const fact = element("div", "rlm-fact");
        fact.append(element("span", "rlm-name", name), element("span", "rlm-value", value));
        if (explanation) fact.append(element("span", "rlm-why", `(${explanation})`));
        return fact;
      }),
    );
  }

  private fieldView(id: number, field: Field): HTMLElement {
    const view = element("div", "rlm-field");
    view.dataset.name = field.name;
    const heading = element("div", "rlm-heading");
    const copy = element("button", "rlm-copy", "copy");
    copy.type = "button";
    const body = element("pre", field.code ? "rlm-code" : "rlm-text");
    body.textContent = field.text;
    copy.addEventListener("click", () => {
      void navigator.clipboard?.writeText(body.textContent ?? "").then(() => setText(copy, "copied"));
    });
    heading.append(element("span", "", field.name), copy);
    view.append(heading, body, element("button", "rlm-more"));
    this.updateMore(view, id, field.name, field.chars);
    return view;
  }

  private updateMore(view: HTMLElement, id: number, name: string, chars: number): void {
    const more = view.querySelector<HTMLButtonElement>(".rlm-more");
    const here = codePoints(view.querySelector("pre")?.textContent ?? "");
    if (more === null) return;
    more.type = "button";
    more.hidden = here >= chars;
    setText(more, `show more (${count(here)} of ${count(chars)} characters)`);
    more.onclick = () => this.send({ type: "text", id, name, offset: here });
  }
}

/** Python counts characters as code points, JavaScript as UTF-16 units. */
function codePoints(text: string): number {
  let total = text.length;
  for (let i = 0; i < text.length; i++) {
    const unit = text.charCodeAt(i);
    if (unit >= 0xd800 && unit < 0xdc00) total--;
  }
  return total;
}
