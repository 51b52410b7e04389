// What all views of one run share, and when the kernel is asked for a snapshot.

import type { Incoming, Outgoing } from "./model/messages";
import { Store } from "./model/store";
import type { UiState } from "./view/tree";

/** A snapshot is asked for once in this time at most; unanswered, ever more seldom. */
const FIRST_PAUSE = 1000;
const LONGEST_PAUSE = 30_000;
/** A running run that is silent for so long is asked: its last message may have been lost. */
const SILENCE = 5000;
const LONGEST_SILENCE = 60_000;
/** After this time without an answer we say so. */
export const PATIENCE = 3000;

export interface Model {
  get(name: "place"): string;
  on(event: "msg:custom", callback: (message: Incoming) => void): void;
  send(message: Outgoing): void;
}

/** What all views of one run share: one of them may go and another come at any time. */
export class Session {
  readonly store = new Store();
  readonly ui: UiState = {
    folds: new Map(), selected: null, panel: false, scroll: 0, follow: true, stopping: false,
  };
  readonly views = new Set<(message: Incoming) => void>();
  private needed = true;
  private asked = -Infinity;
  private pause = FIRST_PAUSE;
  private heard = -Infinity;
  private silence = SILENCE;
  /** Since when a question stands open. */
  private waitingSince: number | null = null;

  constructor(private model: Model) {
    model.on("msg:custom", (message) => this.receive(message));
  }

  /** Ask for a snapshot where one is needed and it is time. */
  ask(): void {
    const now = performance.now();
    const { summary, ended } = this.store;
    if (!this.needed && summary !== null && !ended && now - this.heard > this.silence) {
      this.needed = true;
      this.silence = Math.min(2 * this.silence, LONGEST_SILENCE);
    }
    if (!this.needed || now - this.asked < this.pause) return;
    if (this.waitingSince === null) this.waitingSince = now;
    else this.pause = Math.min(2 * this.pause, LONGEST_PAUSE);
    this.asked = now;
    send(this.model, { type: "snapshot" });
  }

  /** Whether the kernel has owed us an answer for too long. */
  unanswered(): boolean {
    return this.waitingSince !== null && performance.now() - this.waitingSince > PATIENCE;
  }

  private receive(message: Incoming): void {
    const now = performance.now();
    this.heard = now;
    this.waitingSince = null;
    if (this.store.apply(message, now)) this.needed = true;
    else if (message.type === "rows") this.silence = SILENCE;
    else if (message.type === "snapshot" && message.part + 1 === message.parts) this.needed = false;
    if (message.type === "snapshot") this.asked = now; // more parts may be on their way
    this.pause = FIRST_PAUSE;
    this.ask();
    for (const view of this.views) view(message);
  }
}

/** A comm that is closed throws; that nobody answers is told by the session. */
export function send(model: Model, message: Outgoing): void {
  try {
    model.send(message);
  } catch (error) {
    console.debug("rlm_notebook: not sent", message.type, error);
  }
}
