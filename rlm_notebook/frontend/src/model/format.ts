// Numbers as a person reads them.

import type { Row, Summary } from "./messages";
import { latency, queueWait } from "./scale";

export function duration(ms: number): string {
  if (ms < 1) return `${ms.toFixed(1)} ms`;
  if (ms < 999.5) return `${Math.round(ms)} ms`;
  if (ms < 9_995) return `${(ms / 1000).toFixed(2)} s`;
  if (ms < 59_950) return `${(ms / 1000).toFixed(1)} s`;
  const seconds = Math.round(ms / 1000);
  return `${Math.floor(seconds / 60)}:${String(seconds % 60).padStart(2, "0")} min`;
}

/** A time to the last digit that means something, for where one looks closely. */
export function exact(ms: number): string {
  return ms < 1000 ? `${Number(ms.toFixed(2))} ms` : `${count(Number((ms / 1000).toFixed(3)))} s`;
}

export function count(value: number): string {
  return value.toLocaleString("en-US");
}

export function plural(value: number, noun: string): string {
  return `${count(value)} ${noun}${value === 1 ? "" : "s"}`;
}

/** Tokens of a run; "≥" if some call did not report its own. */
export function tokens(summary: Summary): string {
  const floor = summary.usage_complete ? "" : "≥ ";
  return `${floor}${count(summary.input_tokens + summary.output_tokens)} tokens`;
}

export function cost(summary: Summary): string {
  if (!summary.cost) return "";
  const about = !summary.usage_complete ? "≥ " : summary.cost_estimated ? "≈ " : "";
  return `${about}$${summary.cost.toFixed(4)}`;
}

/** The numbers beside a bar. */
export function times(row: Row, now: number): string {
  const { waited, took } = timesOf(row, now);
  return waited + took;
}

/** The same in two parts: in narrow views the first one gives way. */
export function timesOf(row: Row, now: number): { waited: string; took: string } {
  if (row.state === "not_sent" || row.state === "skipped") return { waited: "", took: "" };
  const own = latency(row, now);
  const wait = queueWait(row, now);
  if (own === null) return { waited: "wait ", took: duration(wait) };
  // A wait below 1 ms is the hand-over between threads, no queue.
  return { waited: wait < 1 ? "" : `wait ${duration(wait)} · `, took: duration(own) };
}

export const STATES: Record<string, { symbol: string; title: string }> = {
  waiting: { symbol: "◌", title: "waiting in the queue" },
  running: { symbol: "▸", title: "running" },
  ok: { symbol: "✓", title: "done" },
  empty: { symbol: "∅", title: "done: the text is empty" },
  null: { symbol: "∅", title: "done: no content came" },
  error: { symbol: "✕", title: "error" },
  cancelled: { symbol: "⊘", title: "cancelled" },
  not_sent: { symbol: "–", title: "not sent" },
  skipped: { symbol: "»", title: "skipped" },
  interrupted: { symbol: "⚡", title: "interrupted: the trace ends here" },
};

export function stateOf(state: string): { symbol: string; title: string } {
  return STATES[state] ?? { symbol: "?", title: state };
}
