// Which rows are shown: the tree without what is folded, as a flat list.

import type { Row } from "./messages";
import type { Store } from "./store";

/** Batches with more slots than this begin folded, and show an overview in place of a bar. */
export const FOLDED_SLOTS = 20;

export interface Line {
  row: Row;
  depth: number;
  foldable: boolean;
  open: boolean;
}

export type Folds = Map<number, boolean>;

export function isOpen(store: Store, row: Row, folds: Folds): boolean {
  const chosen = folds.get(row.id);
  if (chosen !== undefined) return chosen;
  return row.kind !== "batch" || store.childrenOf(row.id).length <= FOLDED_SLOTS;
}

export function visibleLines(store: Store, folds: Folds): Line[] {
  const lines: Line[] = [];
  const visit = (id: number, depth: number): void => {
    const row = store.rows.get(id);
    if (row === undefined) return;
    const children = store.childrenOf(id);
    const foldable = children.length > 0;
    const open = foldable && isOpen(store, row, folds);
    lines.push({ row, depth, foldable, open });
    if (open) for (const child of children) visit(child, depth + 1);
  };
  for (const root of store.childrenOf(null)) visit(root, 0);
  return lines;
}

/** The row to go to from one line by an arrow to the left: its parent. */
export function parentIndex(lines: readonly Line[], index: number): number {
  const depth = lines[index]?.depth ?? 0;
  for (let i = index - 1; i >= 0; i--) if ((lines[i]?.depth ?? 0) < depth) return i;
  return index;
}

export interface Counts {
  total: number;
  ended: number;
  failed: number;
  firstError: string;
}

/** How the slots of a batch stand. */
export function slotCounts(store: Store, batch: Row): Counts {
  const counts: Counts = { total: batch.size ?? 0, ended: 0, failed: 0, firstError: "" };
  for (const id of store.childrenOf(batch.id)) {
    const slot = store.rows.get(id);
    if (slot === undefined) continue;
    if (slot.state !== "waiting" && slot.state !== "running") counts.ended++;
    if (slot.state === "error") {
      counts.failed++;
      counts.firstError ||= slot.error ?? "";
    }
  }
  return counts;
}
