// The controls of a film: play, speed, time, event by event.

import { count, duration } from "../model/format";
import type { Incoming, Outgoing } from "../model/messages";
import type { Store } from "../model/store";
import { element, setAttribute, setText } from "./dom";

const FRAME = 50;
/** An answer that is lost must not stop the film. */
const PATIENCE = 1000;
const SPEEDS = [0.25, 1, 4, 16, 64];

export class FilmView {
  readonly root = element("div", "rlm-film");
  private play = element("button", "rlm-play", "▶");
  private speed = element("select", "rlm-speed");
  private time = element("input", "rlm-time");
  private words = element("span", "rlm-film-words");
  private timer: ReturnType<typeof setInterval> | undefined;
  private last = 0;
  /** Where the film is, ms: of the film while it plays, else of what is shown. */
  private at = 0;
  private askedAt: number | null = null;
  private next: Outgoing | null = null;
  private dragging = false;

  constructor(private store: Store, private send: (message: Outgoing) => void) {
    const begin = this.button("|◂", "to the beginning", () => this.seek(0));
    const back = this.button("◂", "one event back", () => this.step(-1));
    const forward = this.button("▸", "one event forward", () => this.step(1));
    const end = this.button("▸|", "to the end", () => this.seek(this.store.film?.length ?? 0));
    this.play.type = "button";
    this.play.addEventListener("click", () => (this.timer === undefined ? this.start() : this.close()));
    for (const speed of SPEEDS) {
      const option = element("option", "", `${speed}×`);
      option.value = String(speed);
      option.selected = speed === 1;
      this.speed.append(option);
    }
    this.speed.setAttribute("aria-label", "speed");
    this.speed.title = "speed";
    this.time.type = "range";
    this.time.min = "0";
    this.time.step = "any";
    this.time.setAttribute("aria-label", "time of the run");
    this.time.addEventListener("input", () => {
      this.dragging = true;
      this.close();
      this.seek(Number(this.time.value));
    });
    this.time.addEventListener("change", () => (this.dragging = false));
    this.time.addEventListener("keydown", (event) => {
      const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      event.stopPropagation(); // the notebook has keys of its own
      if (by === undefined) return;
      event.preventDefault();
      this.step(by);
    });
    this.root.append(begin, back, this.play, forward, end, this.time, this.words, this.speed);
    this.root.hidden = true;
  }

  update(): void {
    const film = this.store.film;
    this.root.hidden = film === null;
    if (film === null) return;
    const playing = this.timer !== undefined;
    const t = playing ? Math.min(this.at, film.length) : film.t;
    if (!playing) this.at = film.t;
    setAttribute(this.time, "max", String(film.length));
    if (!this.dragging) this.time.value = String(t);
    this.time.setAttribute("aria-valuetext", duration(t));
    setText(this.play, playing ? "❚❚" : "▶");
    this.play.title = playing ? "pause" : "play";
    this.play.setAttribute("aria-label", this.play.title);
    setText(this.words, `${duration(t)} of ${duration(film.length)} · event ${count(film.position)} of ${count(film.events)}`);
  }

  receive(message: Incoming): void {
    if (message.type !== "rows" && (message.type !== "snapshot" || message.part + 1 < message.parts)) return;
    this.askedAt = null;
    const next = this.next;
    this.next = null;
    if (next !== null) this.ask(next);
  }

  /** Stop playing. */
  close(): void {
    clearInterval(this.timer);
    this.timer = undefined;
    this.update();
  }

  private start(): void {
    const film = this.store.film;
    if (film === null) return;
    if (this.at >= film.length) this.at = 0;
    this.last = performance.now();
    this.timer = setInterval(() => this.tick(), FRAME);
    this.ask({ type: "seek", t: this.at });
    this.update();
  }

  private tick(): void {
    const now = performance.now();
    const length = this.store.film?.length ?? 0;
    this.at = Math.min(length, this.at + (now - this.last) * Number(this.speed.value));
    this.last = now;
    this.ask({ type: "seek", t: this.at });
    if (this.at >= length) this.close();
    this.update();
  }

  private seek(t: number): void {
    this.close();
    this.at = t;
    this.ask({ type: "seek", t });
  }

  private step(by: number): void {
    this.close();
    this.ask({ type: "step", by });
  }

  /** One question at a time: a slow kernel gets the newest one next. */
  private ask(message: Outgoing): void {
    const now = performance.now();
    if (this.askedAt !== null && now - this.askedAt < PATIENCE) {
      this.next = message;
      return;
    }
    this.askedAt = now;
    this.send(message);
  }

  private button(text: string, title: string, onClick: () => void): HTMLButtonElement {
    const made = element("button", "", text);
    made.type = "button";
    made.title = title;
    made.setAttribute("aria-label", title);
    made.addEventListener("click", onClick);
    return made;
  }
}
