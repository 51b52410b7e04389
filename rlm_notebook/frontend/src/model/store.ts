// The tree as the browser knows it: messages in, rows and children out. No DOM here.

import type { Film, Incoming, Row, Summary } from "./messages";

export class Store {
  rows = new Map<number, Row>();
  summary: Summary | null = null;
  ended = false;
  film: Film | null = null;
  forks = false;
  paused: readonly number[] = [];
  /** Whether the run stands still at its next gate; null if it has none. */
  pausing: boolean | null = null;
  /** Local time at which the summary came, ms. */
  received = 0;
  /** True once a whole snapshot is in. */
  complete = false;
  private children = new Map<number | null, number[]>();
  private unsorted = new Set<number | null>();
  private sequence = 0;
  private parts: Row[] | null = null;

  /**
   * Take a message in. Returns true if messages were lost, so that a snapshot is needed.
   * `at` is the local time in ms.
   */
  apply(message: Incoming, at: number): boolean {
    if (message.type !== "rows" && message.type !== "snapshot") return false;
    const hole = this.sequence > 0 && message.seq !== this.sequence + 1;
    this.sequence = message.seq;
    this.summary = message.summary;
    this.ended = message.ended;
    this.film = message.film ?? null;
    this.forks = message.forks ?? false;
    this.paused = message.paused ?? [];
    this.pausing = message.pausing ?? null;
    this.received = at;
    if (message.type === "rows") {
      for (const row of message.rows) this.put(row);
      return hole;
    }
    if (message.part === 0) this.parts = [];
    else if (hole) this.parts = null;
    if (this.parts === null) return true;
    this.parts.push(...message.rows);
    if (message.part + 1 === message.parts) {
      this.rows.clear();
      this.children.clear();
      for (const row of this.parts) this.put(row);
      this.parts = null;
      this.complete = true;
    }
    return false;
  }

  childrenOf(id: number | null): readonly number[] {
    const found = this.children.get(id);
    if (found === undefined) return [];
    if (this.unsorted.delete(id)) found.sort((a, b) => this.order(a, b));
    return found;
  }

  /** The run's time now, in ms: the summary's, and while the run goes on the time since. */
  now(at: number): number {
    if (this.summary === null) return 0;
    const since = this.ended ? 0 : Math.max(0, at - this.received);
    return this.summary.elapsed + since;
  }

  private put(row: Row): void {
    if (!this.rows.has(row.id)) {
      const siblings = this.children.get(row.parent);
      if (siblings === undefined) this.children.set(row.parent, [row.id]);
      else {
        siblings.push(row.id);
        this.rows.set(row.id, row);
        // Mostly they come in order; lost and repeated messages bring an older one later.
        const before = siblings[siblings.length - 2] ?? row.id;
        if (this.order(before, row.id) > 0) this.unsorted.add(row.parent);
      }
    }
    this.rows.set(row.id, row);
  }

  /** Slots stand by their index; all others by their id, which grows with time. */
  private order(a: number, b: number): number {
    const [one, two] = [this.rows.get(a), this.rows.get(b)];
    if (one?.kind === "slot" && two?.kind === "slot") {
      return (one.index ?? a) - (two.index ?? b) || a - b;
    }
    return a - b;
  }
}
