// Times to fractions of a bar's width.
//
// The slots of a batch share the batch's own time axis, from its submission to its end, so that
// one sees them queue. All other rows stand on the axis of the whole run, as in a waterfall.

import type { Row } from "./messages";
import type { Store } from "./store";

export interface Axis {
  from: number;
  to: number;
  /** Whether it is a batch's own. */
  batch: boolean;
}

export interface Bar {
  /** Where the queue wait begins, 0 to 1. */
  begin: number;
  /** Width of the queue wait. */
  wait: number;
  /** Width of the own latency so far. */
  run: number;
  /** Where the bar would end if the approximate latency were its latency; null: no such mark. */
  mark: number | null;
  /** Failed requests, pauses and second requests within the latency. */
  pieces: { begin: number; width: number; kind: string }[];
}

export function axisOf(store: Store, row: Row, now: number): Axis {
  const batch = row.parent === null ? undefined : store.rows.get(row.parent);
  if (row.kind === "slot" && batch?.kind === "batch") {
    return { from: batch.submitted ?? 0, to: batch.ended ?? now, batch: true };
  }
  return { from: 0, to: now, batch: false };
}

export function barOf(store: Store, row: Row, now: number): Bar {
  const axis = axisOf(store, row, now);
  const length = Math.max(axis.to - axis.from, 0.001);
  const at = (time: number): number => Math.min(1, Math.max(0, (time - axis.from) / length));
  const ended = row.ended ?? now;
  const started = row.started ?? ended;
  const batch = row.parent === null ? undefined : store.rows.get(row.parent);
  const approximate = row.kind === "slot" ? batch?.approximate : null;
  return {
    begin: at(row.submitted ?? 0),
    wait: at(started) - at(row.submitted ?? 0),
    run: row.started == null ? 0 : at(ended) - at(started),
    mark: approximate == null || row.started == null ? null : at(started + approximate),
    pieces: (row.pieces ?? []).map(([from, to, kind]) => ({ begin: at(from), width: at(to) - at(from), kind })),
  };
}

export function queueWait(row: Row, now: number): number {
  return (row.started ?? row.ended ?? now) - (row.submitted ?? 0);
}

export function latency(row: Row, now: number): number | null {
  return row.started == null ? null : (row.ended ?? now) - row.started;
}
