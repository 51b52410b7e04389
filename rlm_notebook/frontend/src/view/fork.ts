// A fork of the run at the row that the panel shows: what is changed there, and its beginning.

import type { Incoming, Outgoing, Row } from "../model/messages";
import type { Store } from "../model/store";
import { element, setText } from "./dom";
import { Editors } from "./editor";

const NAMES: Record<string, string> = {
  code: "code",
  prompt: "prompt",
  "prompt, empty": "tell the model something besides",
  response: "answer of the model",
};

export class ForkView {
  readonly root = element("div", "rlm-fork");
  readonly button = element("button", "rlm-fork-button", "Fork…");
  private words = element("div", "rlm-fork-words");
  private editors = new Editors(NAMES);
  private begin = element("button", "", "Fork the run here");
  private problem = element("div", "rlm-gate-problem");
  private done = element("div", "rlm-fork-done");
  private buttons = element("div", "rlm-gate-buttons");
  private shown: number | null = null;
  private open = false;

  constructor(private store: Store, private send: (message: Outgoing) => void) {
    this.button.type = "button";
    this.button.title = "a run of its own that is the same up to here, and live from here on";
    this.button.addEventListener("click", () => (this.open ? this.close() : this.ask()));
    this.problem.setAttribute("role", "alert");
    this.done.setAttribute("role", "status");
    this.begin.type = "button";
    this.begin.title = "Ctrl+Enter";
    this.begin.addEventListener("click", () => this.fork());
    const cancel = element("button", "", "Cancel");
    cancel.type = "button";
    cancel.addEventListener("click", () => this.close());
    this.buttons.append(this.begin, cancel);
    this.root.setAttribute("role", "group");
    this.root.setAttribute("aria-label", "fork the run");
    this.root.append(this.words, this.editors.root, this.problem, this.done, this.buttons);
    this.root.addEventListener("keydown", (event) => {
      if (event.key === "Escape") {
        this.close();
        event.preventDefault();
      } else if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
        event.preventDefault();
        this.fork();
      }
      event.stopPropagation(); // the notebook has keys of its own
    });
    this.close();
  }

  update(row: Row): void {
    this.button.hidden = !this.store.forks || !["turn", "code", "slot", "lm_call"].includes(row.kind);
    if (this.shown === row.id) return;
    this.shown = row.id;
    this.close();
  }

  receive(message: Incoming): void {
    if (!("id" in message) || message.id !== this.shown || !this.open) return;
    if (message.type === "forkable") {
      const kind = this.store.rows.get(message.id)?.kind;
      this.editors.rename("model", kind === "turn" ? "model from here on" : "model of this call");
      this.editors.show(message.texts, (name, text) => name === "model" || (name === "response" && text !== ""
        && Object.keys(message.texts).length > 1) || text.length > 4000);
      this.buttons.hidden = false;
      this.root.hidden = false;
      this.editors.root.querySelector<HTMLElement>("details[open] textarea")?.focus({ preventScroll: true });
    } else if (message.type === "refused") {
      setText(this.problem, message.message);
      this.begin.disabled = false;
    } else if (message.type === "forked") {
      this.open = false;
      setText(this.done, message.message);
      this.editors.root.replaceChildren();
      setText(this.words, "");
      this.buttons.hidden = true;
    }
  }

  private ask(): void {
    if (this.shown === null) return;
    this.open = true;
    this.begin.disabled = false;
    setText(this.problem, "");
    setText(this.done, "");
    setText(this.words, "What came before is replayed, what comes after is asked anew. Change what you like:");
    this.send({ type: "forkable", id: this.shown });
  }

  private fork(): void {
    if (this.shown === null || this.begin.disabled) return;
    this.begin.disabled = true;
    setText(this.problem, "");
    this.send({ type: "fork", id: this.shown, edits: this.editors.edits() });
  }

  private close(): void {
    this.open = false;
    this.root.hidden = true;
    setText(this.done, "");
    this.editors.root.replaceChildren();
  }
}
