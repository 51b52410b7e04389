// The entry: one anywidget view of a run.

import "./widget.css";
import type { Incoming, Outgoing } from "./model/messages";
import { Store } from "./model/store";
import { element, setText } from "./view/dom";
import { HeaderView } from "./view/header";
import { PanelView } from "./view/panel";
import { TreeView, type UiState } from "./view/tree";

const SNAPSHOT_EVERY = 1000;
const GIVE_UP_AFTER = 3000;
const TICK = 100;
const LOOK_EVERY = 100;

export interface Model {
  get(name: "place"): string;
  on(event: "msg:custom", callback: (message: Incoming) => void): void;
  off(event: "msg:custom", callback: (message: Incoming) => void): void;
  send(message: Outgoing): void;
}

// Shared by all views of one model, and kept when the notebook shows the output anew.
const states = new WeakMap<Model, UiState>();

function render({ model, el }: { model: Model; el: HTMLElement }): () => void {
  const ui = states.get(model) ?? { folds: new Map(), selected: null, scroll: 0, follow: true };
  states.set(model, ui);
  const store = new Store();
  const root = element("div", "rlm-view");
  const note = element("div", "rlm-note");
  const header = new HeaderView(() => model.send({ type: "stop" }));
  const panel = new PanelView(store, (message) => model.send(message), () => {
    ui.selected = null;
    redraw();
  });
  const tree = new TreeView(store, ui, () => redraw(), () => redraw());
  root.append(header.root, note, tree.root, legend(), panel.root);
  el.replaceChildren(root);

  let frame = 0;
  let asked = -Infinity;
  const draw = (): void => {
    frame = 0;
    const now = store.now(performance.now());
    header.update(store, now);
    tree.update(now);
    panel.update(ui.selected, now);
  };
  const redraw = (): void => {
    if (frame === 0) frame = requestAnimationFrame(draw);
  };
  const ask = (): void => {
    const now = performance.now();
    if (now - asked < SNAPSHOT_EVERY) return;
    asked = now;
    model.send({ type: "snapshot" });
  };
  let needed = true;
  const receive = (message: Incoming): void => {
    if (message.type === "fields" || message.type === "text") {
      panel.receive(message);
      return;
    }
    if (store.apply(message, performance.now())) needed = true;
    if (message.type === "snapshot" && message.part + 1 === message.parts && store.complete) {
      needed = false;
    }
    if (needed) ask();
    setText(note, "");
    redraw();
  };
  model.on("msg:custom", receive);
  ask();
  const timer = setInterval(() => {
    if (needed) ask();
    if (!store.ended) redraw();
  }, TICK);
  const giveUp = setTimeout(() => {
    if (store.summary === null) setText(note, "No kernel is connected: this view is not live.");
  }, GIVE_UP_AFTER);
  const resized = new ResizeObserver(() => redraw());
  resized.observe(root);
  draw();
  return () => {
    clearInterval(timer);
    clearTimeout(giveUp);
    cancelAnimationFrame(frame);
    resized.disconnect();
    model.off("msg:custom", receive);
  };
}

function legend(): HTMLElement {
  const made = element("div", "rlm-legend");
  const sample = (name: string, text: string): void => {
    const item = element("span", "rlm-item");
    const swatch = element("span", "rlm-swatch");
    swatch.append(element("i", name));
    item.append(swatch, element("span", "", text));
    made.append(item);
  };
  sample("rlm-wait", "waiting in the queue");
  sample("rlm-run", "own latency");
  sample("rlm-mark", "approximate latency (batch duration / prompts): where the slot would end if that were its latency");
  return made;
}

/**
 * When a run has ended, its output is the static tree, so that the saved notebook shows it without
 * this widget. As long as the kernel knows the run, the live view takes the place of that tree:
 * it has all texts. Notebooks attach and detach their outputs as they like, so we look again.
 */
function initialize({ model }: { model: Model }): () => void {
  const place = model.get("place");
  let shown: { outer: HTMLElement; undo: () => void } | null = null;
  const look = (): void => {
    const outer = document.getElementById(place);
    if (shown !== null && shown.outer !== outer) {
      shown.undo();
      shown = null;
    }
    if (outer === null || shown !== null) return;
    const inner = element("div");
    const saved = [...outer.children].filter((child) => child instanceof HTMLElement);
    for (const child of saved) child.hidden = true;
    outer.append(inner);
    const stop = render({ model, el: inner });
    shown = {
      outer,
      undo: () => {
        stop();
        inner.remove();
        for (const child of saved) child.hidden = false;
      },
    };
  };
  const timer = setInterval(look, LOOK_EVERY);
  return () => {
    clearInterval(timer);
    shown?.undo();
  };
}

export default { initialize, render };
