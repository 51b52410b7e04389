// The entry: one anywidget view of a run.

import "./widget.css";
import type { Incoming } from "./model/messages";
import { type Model, PATIENCE, send, Session } from "./session";
import { element, setAttribute, setText } from "./view/dom";
import { FilmView } from "./view/film";
import { GateView } from "./view/gate";
import { HeaderView } from "./view/header";
import { legend } from "./view/legend";
import { PanelView } from "./view/panel";
import { TreeView } from "./view/tree";

export type { Model };

const TICK = 100;
const LOOK_EVERY = 100;

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
  note.setAttribute("role", "status");
  const header = new HeaderView(
    ui,
    () => send(model, { type: "stop" }),
    () => send(model, { type: "pause" }),
  );
  const gate = new GateView(store, (message) => send(model, message));
  const panel = new PanelView(store, (message) => send(model, message), () => {
    ui.panel = false;
    redraw();
  });
  const tree = new TreeView(store, ui, () => redraw());
  const film = new FilmView(store, (message) => send(model, message));
  root.append(header.root, gate.root, film.root, note, tree.root, legend(), panel.root);
  el.replaceChildren(root);

  const began = performance.now();
  let frame = 0;
  const draw = (): void => {
    frame = 0;
    const now = store.now(performance.now());
    setAttribute(root, "data-empty", String(store.summary === null));
    setText(note, noteOf(session, performance.now() - began));
    header.update(store, now);
    film.update();
    gate.update();
    tree.update(now);
    panel.update(ui.panel ? ui.selected : null, now);
  };
  const redraw = (): void => {
    if (frame === 0) frame = requestAnimationFrame(draw);
  };
  const receive = (message: Incoming): void => {
    panel.receive(message);
    film.receive(message);
    gate.receive(message);
    redraw();
  };
  session.views.add(receive);
  session.ask();
  const timer = setInterval(() => {
    session.ask();
    if (!store.ended) redraw();
  }, TICK);
  const resized = new ResizeObserver(() => redraw());
  resized.observe(root);
  draw();
  return () => {
    session.views.delete(receive);
    panel.close();
    film.close();
    clearInterval(timer);
    cancelAnimationFrame(frame);
    resized.disconnect();
  };
}

/** One line in place of a view that would seem to load, or to be live, for ever. */
function noteOf(session: Session, age: number): string {
  const { summary, ended } = session.store;
  if (summary === null) {
    return age < PATIENCE ? "Waiting for the kernel…" : "No kernel is connected: this view is not live.";
  }
  return !ended && session.unanswered() ? "The kernel does not answer: this may be out of date." : "";
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

export default { initialize, render };
