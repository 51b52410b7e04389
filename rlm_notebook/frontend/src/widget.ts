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
  send(message: Outgoing): void;
}

/** What all views of one run share: one of them may go and another come at any time. */
class Session {
  readonly store = new Store();
  readonly ui: UiState = { folds: new Map(), selected: null, scroll: 0, follow: true };
  readonly views = new Set<(message: Incoming) => void>();
  private asked = -Infinity;
  private needed = true;

  constructor(private model: Model) {
    model.on("msg:custom", (message) => this.receive(message));
  }

  /** Ask for a snapshot where one is needed, once a second at most. */
  ask(): void {
    const now = performance.now();
    if (!this.needed || now - this.asked < SNAPSHOT_EVERY) return;
    this.asked = now;
    this.model.send({ type: "snapshot" });
  }

  private receive(message: Incoming): void {
    if (this.store.apply(message, performance.now())) this.needed = true;
    else if (message.type === "snapshot" && message.part + 1 === message.parts) {
      this.needed = !this.store.complete;
    }
    this.ask();
    for (const view of this.views) view(message);
  }
}

// By the id of the run's place: the model object itself is another one for each view.
const sessions = new Map<string, Session>();

function sessionOf(model: Model): Session {
  const place = model.get("place");
  const found = sessions.get(place) ?? new Session(model);
  sessions.set(place, found);
  return found;
}

function render({ model, el }: { model: Model; el: HTMLElement }): () => void {
  const session = sessionOf(model);
  const { store, ui } = session;
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
  const receive = (message: Incoming): void => {
    panel.receive(message);
    setText(note, "");
    redraw();
  };
  session.views.add(receive);
  session.ask();
  const timer = setInterval(() => {
    session.ask();
    if (!store.ended) redraw();
  }, TICK);
  const giveUp = setTimeout(() => {
    if (store.summary === null) setText(note, "No kernel is connected: this view is not live.");
  }, GIVE_UP_AFTER);
  const resized = new ResizeObserver(() => redraw());
  resized.observe(root);
  draw();
  return () => {
    session.views.delete(receive);
    clearInterval(timer);
    clearTimeout(giveUp);
    cancelAnimationFrame(frame);
    resized.disconnect();
  };
}

/**
 * When a run has ended, its output is the static tree, so that the saved notebook shows it without
 * this widget. As long as the kernel knows the run, the live view takes the place of that tree:
 * it has all texts. Notebooks attach and detach their outputs as they like, so we look again.
 */
function initialize({ model }: { model: Model }): () => void {
  const place = model.get("place");
  const session = sessionOf(model);
  let shown: { outer: HTMLElement; undo: () => void } | null = null;
  const look = (): void => {
    const outer = document.getElementById(place);
    if (shown !== null && shown.outer !== outer) {
      shown.undo();
      shown = null;
    }
    if (outer === null || shown !== null) return;
    session.ask();
    if (!session.store.complete && session.store.rows.size === 0) return;
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
    sessions.delete(place);
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

export default { initialize, render };
