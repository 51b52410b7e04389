// What a row holds: its times, and its texts, the long ones part by part.

import type { Field, Incoming, Outgoing, Row } from "../model/messages";
import { count, exact, stateOf } from "../model/format";
import { latency, queueWait } from "../model/scale";
import type { Store } from "../model/store";
import { element, setText } from "./dom";
import { ForkView } from "./fork";

const APPROXIMATE =
  "batch duration / number of prompts: what the reference library reports for every slot; not a latency";

/** Holding an arrow key down must not ask for every row on the way. */
const ASK_EVERY = 200;
const ASK_AGAIN = 2000;
const TRIES = 3;

export class PanelView {
  readonly root = element("div", "rlm-panel");
  private title = element("div", "rlm-title");
  private facts = element("div", "rlm-facts");
  private texts = element("div", "rlm-texts");
  private fork: ForkView;
  private shown: number | null = null;
  private shownState = "";
  private shownChars: number | null = null;
  private timer: ReturnType<typeof setTimeout> | undefined;
  private asked = -Infinity;

  constructor(private store: Store, private send: (message: Outgoing) => void, onClose: () => void) {
    const close = element("button", "rlm-close", "×");
    close.type = "button";
    close.title = "close (Escape)";
    close.addEventListener("click", onClose);
    const top = element("div", "rlm-panel-top");
    this.fork = new ForkView(store, send);
    top.append(this.title, this.fork.button, close);
    this.root.append(top, this.fork.root, this.facts, this.texts);
    this.root.addEventListener("keydown", (event) => {
      if (event.key !== "Escape") return;
      event.preventDefault();
      event.stopPropagation(); // the notebook would leave its edit mode
      onClose();
    });
    this.root.hidden = true;
  }

  /** Show a row, or nothing; asks for its texts when it is another row or its state has changed. */
  update(selected: number | null, now: number): void {
    const row = selected === null ? undefined : this.store.rows.get(selected);
    this.root.hidden = row === undefined;
    if (row === undefined) {
      this.shown = null;
      this.close();
      return;
    }
    const another = this.shown !== row.id;
    if (another) this.texts.replaceChildren(element("div", "rlm-pending", "…"));
    const chars = row.chars ?? null; // a text that is being written is asked for as it grows
    if (another || this.shownState !== row.state || this.shownChars !== chars) {
      this.shown = row.id;
      this.shownState = row.state;
      this.shownChars = chars;
      this.ask(row.id, TRIES, Math.max(0, this.asked + ASK_EVERY - performance.now()));
    }
    setText(this.title, `${stateOf(row.state).symbol} ${row.label} — ${stateOf(row.state).title}`);
    this.updateFacts(row, now);
    this.fork.update(row);
  }

  /** Stop asking. */
  close(): void {
    clearTimeout(this.timer);
  }

  receive(message: Incoming): void {
    this.fork.receive(message);
    if (message.type === "fields" && message.id === this.shown) {
      this.close();
      const views = message.fields.map((field) => this.known(field) ?? this.fieldView(message.id, field));
      if (views.length === 0) views.push(element("div", "rlm-pending", "It has no texts."));
      this.texts.replaceChildren(...views);
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

  /** Ask for the texts of a row, and again if the answer is lost. */
  private ask(id: number, tries: number, delay: number): void {
    clearTimeout(this.timer);
    const go = (): void => {
      if (tries === 0) {
        const known = this.texts.querySelector(".rlm-field") !== null;
        if (!known) setText(this.texts, "The kernel does not answer: the texts can't be shown.");
        return;
      }
      this.asked = performance.now();
      this.ask(id, tries - 1, ASK_AGAIN);
      this.send({ type: "fields", id });
    };
    if (delay === 0) go();
    else this.timer = setTimeout(go, delay);
  }

  /** The view of a text that has not changed: what was loaded, scrolled and selected stays. */
  private known(field: Field): HTMLElement | undefined {
    for (const view of this.texts.children) {
      if (!(view instanceof HTMLElement) || view.dataset.name !== field.name) continue;
      const body = view.querySelector("pre");
      const text = body?.textContent ?? "";
      if (view.dataset.chars === String(field.chars) && text.startsWith(field.text)) return view;
      if (body === null || text === "" || !field.text.startsWith(text)) continue;
      const following = body.scrollTop + body.clientHeight >= body.scrollHeight - 4;
      body.append(field.text.slice(text.length)); // it has grown: what is selected stays
      if (following) requestAnimationFrame(() => (body.scrollTop = body.scrollHeight));
      view.dataset.chars = String(field.chars);
      this.updateMore(view, this.shown ?? 0, field.name, field.chars);
      return view;
    }
    return undefined;
  }

  private updateFacts(row: Row, now: number): void {
    const facts: [string, string, string?][] = [];
    const own = latency(row, now);
    const wait = queueWait(row, now);
    if (row.kind === "slot" || row.kind === "lm_call" || wait >= 1) {
      facts.push(["queue wait", exact(wait)]);
      if (own !== null) facts.push(["latency", exact(own)]);
    } else if (own !== null && row.state !== "skipped") facts.push(["duration", exact(own)]);
    const batch = row.parent === null ? undefined : this.store.rows.get(row.parent);
    const approximate = row.kind === "batch" ? row.approximate : batch?.approximate;
    facts.push([row.started == null || row.state === "skipped" ? "submitted" : "started", `${exact(row.started ?? row.submitted ?? 0)} into the run`]);
    if (row.model) facts.push(["model", row.model]);
    if (row.tokens_in != null || row.tokens_out != null) {
      facts.push(["tokens", `${count(row.tokens_in ?? 0)} in, ${count(row.tokens_out ?? 0)} out`]);
    }
    if (row.first != null && row.started != null) {
      const begun = Math.max(row.started, ...(row.pieces ?? []).map((piece) => piece[1]));
      facts.push(["time to first token", exact(row.first - begun)]);
      if (row.ended != null && row.tokens_out && row.ended > row.first) {
        facts.push(["speed", `${(row.tokens_out / ((row.ended - row.first) / 1000)).toFixed(1)} tokens/s`]);
      }
    }
    if (approximate != null) facts.push(["approximate latency", exact(approximate), APPROXIMATE]);
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
    view.dataset.chars = String(field.chars);
    const heading = element("div", "rlm-heading");
    const copy = element("button", "rlm-copy", "copy");
    copy.type = "button";
    const body = element("pre", field.code ? "rlm-code" : "rlm-text");
    body.textContent = field.text;
    copy.addEventListener("click", () => void copyText(body, copy));
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
    const copy = view.querySelector<HTMLElement>(".rlm-copy");
    if (copy !== null) copy.title = more.hidden ? "copy the text" : "copy the part that is shown";
    setText(more, `show more (${count(here)} of ${count(chars)} characters)`);
    more.onclick = () => this.send({ type: "text", id, name, offset: here });
  }
}

/** Copy a text; where the clipboard is out of reach (plain http), select it for Ctrl-C. */
async function copyText(body: HTMLElement, button: HTMLElement): Promise<void> {
  try {
    await navigator.clipboard.writeText(body.textContent ?? "");
    setText(button, "copied");
  } catch {
    getSelection()?.selectAllChildren(body);
    setText(button, "selected: Ctrl-C");
  }
  setTimeout(() => setText(button, "copy"), 2000);
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
