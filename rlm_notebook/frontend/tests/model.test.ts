import { describe, expect, test } from "vitest";
import type { Incoming, Row } from "../src/model/messages";
import { cost, duration, exact, times, tokens } from "../src/model/format";
import { barOf } from "../src/model/scale";
import { Store } from "../src/model/store";
import { FOLDED_SLOTS, parentIndex, slotCounts, visibleLines } from "../src/model/visible";
import { summary } from "./sample";

const rows = (seq: number, list: Row[], more = {}): Incoming =>
  ({ type: "rows", seq, rows: list, summary: summary(), ended: false, ...more });

const snapshot = (seq: number, part: number, parts: number, list: Row[]): Incoming =>
  ({ type: "snapshot", seq, part, parts, rows: list, summary: summary(), ended: false });

const row = (id: number, parent: number | null, kind: string, more: Partial<Row> = {}): Row =>
  ({ id, parent, kind, state: "ok", label: kind, submitted: 0, started: 0, ended: 10, ...more });

function batchOf(slots: number): Store {
  const store = new Store();
  store.apply(rows(1, [
    row(1, null, "run"), row(2, 1, "batch", { size: slots, ended: 400, approximate: 100 }),
    ...Array.from({ length: slots }, (_, i) => row(3 + i, 2, "slot", { index: i })),
  ]), 0);
  return store;
}

describe("store", () => {
  test("rows are added, replaced and kept in order of their ids", () => {
    const store = new Store();
    store.apply(rows(1, [row(1, null, "run"), row(3, 1, "turn"), row(2, 1, "turn")]), 0);
    store.apply(rows(2, [row(2, 1, "turn", { state: "error" })]), 0);
    expect(store.childrenOf(1)).toEqual([2, 3]);
    expect(store.rows.get(2)?.state).toBe("error");
  });

  test("slots stand by their index, in whatever order they come", () => {
    const store = new Store();
    store.apply(rows(1, [
      row(1, null, "batch"), row(7, 1, "slot", { index: 0 }), row(5, 1, "slot", { index: 1 }),
      row(6, 1, "slot", { index: 2 }),
    ]), 0);
    expect(store.childrenOf(1)).toEqual([7, 5, 6]);
  });

  test("a row that comes before its parent is shown once the parent is there", () => {
    const store = new Store();
    store.apply(rows(1, [row(1, null, "run"), row(3, 2, "code")]), 0);
    expect(visibleLines(store, new Map()).map((line) => line.row.id)).toEqual([1]);
    store.apply(rows(2, [row(2, 1, "turn")]), 0);
    expect(visibleLines(store, new Map()).map((line) => line.row.id)).toEqual([1, 2, 3]);
  });

  test("a hole in the numbers asks for a snapshot, and the rows that came are kept", () => {
    const store = new Store();
    expect(store.apply(rows(1, [row(1, null, "run")]), 0)).toBe(false);
    expect(store.apply(rows(3, [row(5, 1, "turn")]), 0)).toBe(true);
    expect(store.rows.size).toBe(2);
    expect(store.apply(rows(4, []), 0)).toBe(false);
  });

  test("a snapshot in parts replaces everything once it is whole", () => {
    const store = new Store();
    store.apply(rows(1, [row(9, null, "run")]), 0);
    store.apply(snapshot(2, 0, 2, [row(1, null, "run")]), 0);
    expect(store.rows.has(9)).toBe(true);
    expect(store.complete).toBe(false);
    store.apply(snapshot(3, 1, 2, [row(2, 1, "turn")]), 0);
    expect([...store.rows.keys()]).toEqual([1, 2]);
    expect(store.complete).toBe(true);
  });

  test("a snapshot that lost a part is asked for again", () => {
    const store = new Store();
    store.apply(snapshot(1, 0, 3, [row(1, null, "run")]), 0);
    expect(store.apply(snapshot(3, 2, 3, [row(3, 1, "turn")]), 0)).toBe(true);
    expect(store.complete).toBe(false);
  });

  test("the clock goes on while the run does and stands still afterwards", () => {
    const store = new Store();
    store.apply(rows(1, []), 100);
    expect(store.now(350)).toBe(1250);
    store.apply(rows(2, [], { ended: true }), 400);
    expect(store.now(900)).toBe(1000);
  });
});

describe("visible lines", () => {
  test("a large batch begins folded, a small one open, and a choice is kept", () => {
    expect(visibleLines(batchOf(FOLDED_SLOTS), new Map())).toHaveLength(2 + FOLDED_SLOTS);
    const large = batchOf(FOLDED_SLOTS + 1);
    expect(visibleLines(large, new Map())).toHaveLength(2);
    expect(visibleLines(large, new Map([[2, true]]))).toHaveLength(2 + FOLDED_SLOTS + 1);
  });

  test("the parent of a line is found", () => {
    const lines = visibleLines(batchOf(3), new Map());
    expect(parentIndex(lines, 4)).toBe(1);
    expect(parentIndex(lines, 1)).toBe(0);
    expect(parentIndex(lines, 0)).toBe(0);
  });

  test("failed and ended slots are counted", () => {
    const store = batchOf(3);
    store.apply(rows(2, [
      row(4, 2, "slot", { state: "error", error: "http: no" }), row(5, 2, "slot", { state: "running" }),
    ]), 0);
    const batch = store.rows.get(2);
    expect(batch && slotCounts(store, batch)).toEqual(
      { total: 3, ended: 2, failed: 1, firstError: "http: no" });
  });
});

describe("scale", () => {
  test("a slot's bar stands on its batch's axis, with its queue wait and the approximate mark", () => {
    const store = batchOf(4);
    const slot = row(3, 2, "slot", { submitted: 0, started: 200, ended: 300 });
    expect(barOf(store, slot, 5000)).toEqual({ begin: 0, wait: 0.5, run: 0.25, mark: 0.75, pieces: [] });
  });

  test("a running slot grows and a waiting one only waits", () => {
    const store = batchOf(4);
    store.apply(rows(2, [row(2, 1, "batch", { size: 4, ended: null })]), 0);
    const running = row(3, 2, "slot", { state: "running", started: 500, ended: null });
    expect(barOf(store, running, 1000)).toEqual({ begin: 0, wait: 0.5, run: 0.5, mark: null, pieces: [] });
    const waiting = row(4, 2, "slot", { state: "waiting", started: null, ended: null });
    expect(barOf(store, waiting, 1000)).toEqual({ begin: 0, wait: 1, run: 0, mark: null, pieces: [] });
  });

  test("failed requests and pauses stand on the slot's axis", () => {
    const slot = row(3, 2, "slot", {
      submitted: 0, started: 0, ended: 400, pieces: [[0, 100, "failed"], [100, 300, "pause"]],
    });
    expect(barOf(batchOf(4), slot, 5000).pieces).toEqual([
      { begin: 0, width: 0.25, kind: "failed" },
      { begin: 0.25, width: 0.5, kind: "pause" },
    ]);
  });

  test("other rows stand on the axis of the run", () => {
    const turn = row(7, 1, "turn", { submitted: 250, started: 250, ended: 500 });
    expect(barOf(batchOf(1), turn, 1000)).toEqual({ begin: 0.25, wait: 0, run: 0.25, mark: null, pieces: [] });
  });
});

describe("format", () => {
  test("a cost from a price list is about right, one with unknown parts a floor", () => {
    expect(cost(summary({ cost: 0.5 }))).toBe("$0.5000");
    expect(cost(summary({ cost: 0.5, cost_estimated: true }))).toBe("≈ $0.5000");
    expect(cost(summary({ cost: 0.5, cost_estimated: true, usage_complete: false }))).toBe("≥ $0.5000");
  });

  test.each([
    [0.4, "0.4 ms"], [12.4, "12 ms"], [999.4, "999 ms"], [999.6, "1.00 s"], [8123, "8.12 s"],
    [23456, "23.5 s"], [61_000, "1:01 min"], [600_000, "10:00 min"],
  ])("%f ms is %s", (ms, text) => expect(duration(ms)).toBe(text));

  test.each([
    [0.4, "0.4 ms"], [304.891, "304.89 ms"], [2817.4, "2.817 s"], [1_234_567, "1,234.567 s"],
  ])("%f ms is exactly %s", (ms, text) => expect(exact(ms)).toBe(text));

  test("wait and latency stand side by side", () => {
    expect(times(row(1, null, "slot", { started: 200, ended: 540 }), 0)).toBe("wait 200 ms · 340 ms");
    expect(times(row(1, null, "slot", { started: 0, ended: 340 }), 0)).toBe("340 ms");
    expect(times(row(1, null, "slot", { state: "waiting", started: null, ended: null }), 90)).toBe("wait 90 ms");
    expect(times(row(1, null, "slot", { state: "not_sent", started: null }), 90)).toBe("");
  });

  test("a floor of tokens says so", () => {
    expect(tokens(summary({ input_tokens: 1200, output_tokens: 34 }))).toBe("1,234 tokens");
    expect(tokens(summary({ input_tokens: 5, usage_complete: false }))).toBe("≥ 5 tokens");
  });
});
