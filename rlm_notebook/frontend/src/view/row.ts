// One row of the tree: fold mark, state, label, detail or error, times, bar.

import type { Row } from "../model/messages";
import { count, duration, plural, stateOf, times, timesOf } from "../model/format";
import { type Bar, barOf } from "../model/scale";
import type { Store } from "../model/store";
import { type Counts, type Line, slotCounts } from "../model/visible";
import { element, setAttribute, setStyle, setText } from "./dom";
import { drawOverview } from "./overview";

export class RowView {
  readonly root = element("div", "rlm-row");
  private fold = element("span", "rlm-fold");
  private state = element("span", "rlm-state");
  private label = element("span", "rlm-label");
  private failed = element("span", "rlm-failed");
  private failures = element("span");
  private detail = element("span", "rlm-detail");
  private times = element("span", "rlm-times");
  private waited = element("span", "rlm-waited");
  private took = element("span");
  private bar = element("span", "rlm-bar");
  private wait = element("i", "rlm-wait");
  private run = element("i", "rlm-run");
  private mark = element("i", "rlm-mark");
  private pieces: HTMLElement[] = [];
  private overview = element("canvas", "rlm-overview");

  constructor(readonly id: number, prefix: string) {
    this.root.setAttribute("role", "treeitem");
    this.root.dataset.id = String(id);
    this.root.id = `${prefix}${id}`;
    this.bar.append(this.wait, this.run, this.mark, this.overview);
    this.times.append(this.waited, this.took);
    this.failed.append(this.failures, element("span", "rlm-word", " failed"));
    this.root.append(this.fold, this.state, this.label, this.failed, this.detail, this.times, this.bar);
  }

  update(store: Store, line: Line, now: number, selected: boolean): void {
    const { row, depth, foldable, open } = line;
    const root = this.root;
    setAttribute(root, "data-kind", row.kind);
    setAttribute(root, "data-state", row.state);
    setAttribute(root, "aria-level", String(depth + 1));
    setAttribute(root, "aria-selected", String(selected));
    if (foldable) setAttribute(root, "aria-expanded", String(open));
    else root.removeAttribute("aria-expanded");
    setStyle(root, "--depth", String(Math.min(depth, 12)));
    setText(this.fold, foldable ? (open ? "▾" : "▸") : "");
    const state = stateOf(row.state);
    setText(this.state, state.symbol);
    setAttribute(this.state, "title", state.title);
    setText(this.label, row.label);
    this.updateDetail(store, row, open);
    const { waited, took } = timesOf(row, now);
    setText(this.waited, waited);
    setText(this.took, took);
    this.updateBar(store, row, now, foldable && !open && row.kind === "batch");
  }

  private updateDetail(store: Store, row: Row, open: boolean): void {
    const counts = row.kind === "batch" ? slotCounts(store, row) : null;
    const text = counts === null ? detailOf(row) : batchDetail(row, counts, open);
    this.failed.hidden = counts === null || counts.failed === 0;
    setText(this.failures, count(counts?.failed ?? 0));
    setText(this.detail, text);
    setAttribute(this.detail, "title", text);
    this.detail.classList.toggle("rlm-error", Boolean(row.error) && row.kind !== "batch");
  }

  private updateBar(store: Store, row: Row, now: number, overview: boolean): void {
    this.bar.classList.toggle("rlm-folded", overview);
    if (overview) {
      drawOverview(this.overview, store, row, now);
      setAttribute(this.bar, "title", "a column a slot; the higher, the longer its own latency (square-root scale)");
      return;
    }
    const bar = barOf(store, row, now);
    setStyle(this.wait, "left", percent(bar.begin));
    setStyle(this.wait, "width", percent(bar.wait));
    setStyle(this.run, "left", percent(bar.begin + bar.wait));
    setStyle(this.run, "width", percent(bar.run));
    this.updatePieces(bar);
    setStyle(this.mark, "display", bar.mark === null ? "none" : "block");
    if (bar.mark !== null) setStyle(this.mark, "left", percent(bar.mark));
    setAttribute(this.bar, "title", times(row, now));
  }

  private updatePieces(bar: Bar): void {
    while (this.pieces.length > bar.pieces.length) this.pieces.pop()?.remove();
    bar.pieces.forEach((piece, i) => {
      let view = this.pieces[i];
      if (view === undefined) {
        view = element("i", "rlm-piece");
        this.pieces.push(view);
        this.bar.insertBefore(view, this.mark);
      }
      setAttribute(view, "data-kind", piece.kind);
      setStyle(view, "left", percent(piece.begin));
      setStyle(view, "width", percent(piece.width));
    });
  }
}

function percent(fraction: number): string {
  return `${(fraction * 100).toFixed(2)}%`;
}

function detailOf(row: Row): string {
  if (row.error) return row.error;
  // Without this its prompt would stand where other slots have their response.
  if (row.state === "empty") return "(the text is empty)";
  if (row.state === "null") return "(no content came)";
  return row.detail ?? "";
}

function batchDetail(row: Row, counts: Counts, open: boolean): string {
  const total = plural(counts.total, "prompt");
  const parts = [
    row.ended == null ? `${count(counts.ended)} of ${total}` : total,
    `${row.limit ?? "?"} at once`,
  ];
  if (row.approximate != null) parts.push(`approximate ${duration(row.approximate)} each`);
  if (row.error) parts.unshift(row.error);
  else if (!open && counts.firstError) parts.push(counts.firstError);
  return parts.join(" · ");
}
