// Where a run stands still for its user: what comes next, to be edited, and how to go on.

import type { Gate, Incoming, Outgoing } from "../model/messages";
import type { Store } from "../model/store";
import { element, setText } from "./dom";
import { Editors } from "./editor";

const ACTIONS: Record<string, [string, string]> = {
  go: ["Go on", "to the next stop (Ctrl+Enter)"],
  turn: ["Next turn", "on to the next turn"],
  batch: ["Next batch", "on to the next batch"],
  error: ["Next error", "on to the next failed call"],
  run: ["Run to the end", "stop at breakpoints only"],
  skip: ["Skip it", "do not run this block"],
  retry: ["Ask again", "ask once more, with the prompt and the model as they stand here"],
};
const NAMES: Record<string, string> = {
  code: "code that runs next",
  prompt: "prompt",
  prompts: "prompts of the batch, as JSON",
  response: "answer of the model",
  "response, empty": "answer it yourself",
  model: "model",
};
const ASK_AGAIN = 2000;

export class GateView {
  readonly root = element("div", "rlm-gate");
  private title = element("div", "rlm-gate-title");
  private problem = element("div", "rlm-gate-problem");
  private editors = new Editors(NAMES);
  private buttons = element("div", "rlm-gate-buttons");
  private shown: number | null = null;
  private wanted: number | null = null;
  private asked = -Infinity;

  constructor(private store: Store, private send: (message: Outgoing) => void) {
    this.problem.setAttribute("role", "alert");
    this.root.setAttribute("role", "group");
    this.root.setAttribute("aria-label", "the run stands still");
    this.root.append(this.title, this.editors.root, this.problem, this.buttons);
    this.root.hidden = true;
    this.root.addEventListener("keydown", (event) => {
      event.stopPropagation(); // the notebook has keys of its own
      if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
      event.preventDefault();
      this.decide("go");
    });
  }

  update(): void {
    const first = this.store.ended ? undefined : this.store.paused[0];
    if (first === undefined) {
      this.shown = this.wanted = null;
      this.root.hidden = true;
      return;
    }
    if (this.shown === first) return;
    const now = performance.now();
    if (this.wanted === first && now - this.asked < ASK_AGAIN) return;
    this.wanted = first;
    this.asked = now;
    this.send({ type: "gate", id: first });
  }

  receive(message: Incoming): void {
    if (message.type === "gate" && message.id === this.store.paused[0]) {
      if (message.id !== this.shown) this.show(message);
    } else if (message.type === "refused" && message.id === this.shown) {
      setText(this.problem, message.message);
      this.setDisabled(false);
    }
  }

  private show(gate: Gate): void {
    this.shown = gate.id;
    const more = this.store.paused.length - 1;
    setText(this.title, `❚❚ paused at ${gate.words}${more > 0 ? ` (and at ${more} more)` : ""}`);
    setText(this.problem, "");
    // An answer of the user's own is folded away until it is wanted.
    this.editors.show(gate.texts, (name, text) =>
      name === "response" || name === "model" || (name === "prompt" && text.length >= 4000));
    this.buttons.replaceChildren(
      ...gate.actions.filter((action) => action !== "stop").map((action) => { // Stop is in the header
        const [text, title] = ACTIONS[action] ?? [action, ""];
        const button = element("button", "", text);
        button.type = "button";
        button.title = title;
        button.dataset.action = action;
        button.addEventListener("click", () => this.decide(action));
        return button;
      }),
    );
    this.root.hidden = false;
    if (document.activeElement === document.body) {
      this.buttons.querySelector("button")?.focus({ preventScroll: true });
    }
  }

  private decide(action: string): void {
    if (this.shown === null) return;
    this.setDisabled(true);
    setText(this.problem, "");
    this.send({ type: "decide", id: this.shown, action, edits: this.editors.edits() });
  }

  private setDisabled(disabled: boolean): void {
    for (const button of this.buttons.querySelectorAll("button")) button.disabled = disabled;
  }
}
