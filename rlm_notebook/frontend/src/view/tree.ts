// The tree: only the rows in sight are in the document, so that 10,000 slots scroll smoothly.

import { duration } from "../model/format";
import { axisOf } from "../model/scale";
import type { Store } from "../model/store";
import { type Folds, isOpen, type Line, parentIndex, visibleLines } from "../model/visible";
import { element, setAttribute, setStyle, setText } from "./dom";
import { RowView } from "./row";

export const ROW_HEIGHT = 24;
const MARGIN_ROWS = 6;
/** The ruler above the rows, which stays in sight. */
const RULER_HEIGHT = 20;
const TICKS = [0, 0.25, 0.5, 1];

/** Several runs stand in one notebook, so the ids of elements have their tree's number. */
let trees = 0;

/** What survives when the same run is shown again. */
export interface UiState {
  folds: Folds;
  selected: number | null;
  /** Whether the panel shows the selected row. */
  panel: boolean;
  scroll: number;
  /** Follow the newest row until the user takes over. */
  follow: boolean;
  /** Stop was pressed. */
  stopping: boolean;
}

export class TreeView {
  readonly root = element("div", "rlm-tree");
  private content = element("div", "rlm-rows");
  private rows = new Map<number, RowView>();
  private lines: Line[] = [];
  private ownScroll = -1;
  private prefix = `rlm-${trees++}-row-`;
  private ruler = element("div", "rlm-ruler");
  private axis = element("span");
  private ticks = TICKS.map(() => element("span"));

  constructor(
    private store: Store,
    private ui: UiState,
    private redraw: () => void,
  ) {
    const root = this.root;
    root.tabIndex = 0;
    root.setAttribute("role", "tree");
    root.setAttribute("aria-label", "call tree");
    const scale = element("span", "rlm-scale");
    scale.append(...this.ticks);
    this.ruler.setAttribute("aria-hidden", "true");
    this.ruler.append(this.axis, element("span", "rlm-times", "wait · latency"), scale);
    root.append(this.ruler, this.content);
    root.addEventListener("scroll", () => {
      if (Math.abs(root.scrollTop - this.ownScroll) > 1) this.ui.follow = false;
      this.ui.scroll = root.scrollTop;
      this.redraw();
    });
    root.addEventListener("click", (event) => this.click(event));
    root.addEventListener("keydown", (event) => this.key(event));
  }

  update(now: number): void {
    this.lines = visibleLines(this.store, this.ui.folds);
    this.ruler.hidden = this.lines.length === 0;
    setStyle(this.content, "height", `${this.lines.length * ROW_HEIGHT}px`);
    this.place();
    const top = this.root.scrollTop;
    const height = this.root.clientHeight || 460;
    const first = Math.max(0, Math.floor(top / ROW_HEIGHT) - MARGIN_ROWS);
    const last = Math.min(this.lines.length, Math.ceil((top + height) / ROW_HEIGHT) + MARGIN_ROWS);
    const shown = new Set<number>();
    for (let i = first; i < last; i++) {
      const line = this.lines[i];
      if (line === undefined) continue;
      shown.add(line.row.id);
      let view = this.rows.get(line.row.id);
      if (view === undefined) {
        view = new RowView(line.row.id, this.prefix);
        this.rows.set(line.row.id, view);
        this.content.append(view.root);
      }
      setStyle(view.root, "transform", `translateY(${i * ROW_HEIGHT}px)`);
      view.update(this.store, line, now, line.row.id === this.ui.selected);
    }
    this.updateRuler(now);
    for (const [id, view] of this.rows) {
      if (shown.has(id)) continue;
      view.root.remove();
      this.rows.delete(id);
    }
    const selected = this.ui.selected;
    if (selected !== null && shown.has(selected)) {
      setAttribute(this.root, "aria-activedescendant", `${this.prefix}${selected}`);
    } else this.root.removeAttribute("aria-activedescendant");
  }

  /** The ruler measures the axis of the row that stands right below it. */
  private updateRuler(now: number): void {
    const row = this.lines[Math.floor(this.root.scrollTop / ROW_HEIGHT)]?.row;
    if (row === undefined) return;
    const axis = axisOf(this.store, row, now);
    setAttribute(this.ruler, "data-axis", axis.batch ? "batch" : "run");
    setText(this.axis, axis.batch ? "time since the batch was submitted" : "time since the run began");
    TICKS.forEach((part, i) => {
      const tick = this.ticks[i];
      if (tick) setText(tick, part === 0 ? "0" : duration((axis.to - axis.from) * part));
    });
  }

  private place(): void {
    const end = this.lines.length * ROW_HEIGHT + RULER_HEIGHT - this.root.clientHeight;
    const wanted = this.ui.follow ? (this.store.ended ? this.ui.scroll : end) : this.ui.scroll;
    const top = Math.max(0, Math.min(wanted, end));
    if (Math.abs(this.root.scrollTop - top) > 1) {
      this.ownScroll = top;
      this.root.scrollTop = top;
    }
  }

  private click(event: Event): void {
    const target = event.target as HTMLElement;
    const row = target.closest<HTMLElement>(".rlm-row");
    if (row === null) return;
    const id = Number(row.dataset.id);
    if (target.closest(".rlm-fold")) this.toggle(id);
    else if (this.ui.selected === id) this.show(!this.ui.panel);
    else {
      this.select(id);
      this.show(true);
    }
  }

  private toggle(id: number): void {
    const row = this.store.rows.get(id);
    if (row === undefined || this.store.childrenOf(id).length === 0) return;
    this.ui.folds.set(id, !isOpen(this.store, row, this.ui.folds));
    this.ui.follow = false;
    this.redraw();
  }

  private select(id: number | null): void {
    this.ui.selected = id;
    this.ui.follow = false;
    this.redraw();
  }

  private show(panel: boolean): void {
    this.ui.panel = panel;
    this.redraw();
  }

  private key(event: KeyboardEvent): void {
    const at = this.lines.findIndex((line) => line.row.id === this.ui.selected);
    const line = this.lines[at];
    const last = this.lines.length - 1;
    let to = -1;
    if (event.key === "ArrowDown") to = Math.min(last, at + 1);
    else if (event.key === "ArrowUp") to = Math.max(0, at - 1);
    else if (event.key === "Home") to = 0;
    else if (event.key === "End") to = last;
    else if (event.key === "ArrowRight" && line?.foldable) {
      if (line.open) to = at + 1;
      else this.toggle(line.row.id);
    } else if (event.key === "ArrowLeft" && line) {
      if (line.foldable && line.open) this.toggle(line.row.id);
      else to = parentIndex(this.lines, at);
    } else if (event.key === "Escape") {
      if (this.ui.panel) this.show(false);
      else this.select(null);
    } else if (event.key === "Enter" && line) this.show(!this.ui.panel);
    else if (event.key === " " && line) this.toggle(line.row.id);
    else return;
    event.preventDefault();
    event.stopPropagation(); // the notebook has commands of its own on these keys
    const next = this.lines[to];
    if (next === undefined) return;
    this.ui.scroll = Math.min(
      to * ROW_HEIGHT,
      Math.max(this.root.scrollTop, (to + 1) * ROW_HEIGHT + RULER_HEIGHT - this.root.clientHeight),
    );
    this.select(next.row.id);
  }
}
