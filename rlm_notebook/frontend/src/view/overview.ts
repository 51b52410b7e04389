// The slots of a folded batch at a glance: a column each, as high as the root of its
// latency: with one slot a hundred times slower than the rest all others would be a pixel high.

import type { Row } from "../model/messages";
import { latency } from "../model/scale";
import type { Store } from "../model/store";

const HEIGHT = 18;

export function drawOverview(canvas: HTMLCanvasElement, store: Store, batch: Row, now: number): void {
  const context = canvas.getContext?.("2d");
  const width = canvas.clientWidth;
  if (!context || width === 0) return;
  const ratio = window.devicePixelRatio || 1;
  if (canvas.width !== Math.round(width * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(HEIGHT * ratio);
  }
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, HEIGHT);
  const slots = store.childrenOf(batch.id);
  const style = getComputedStyle(canvas);
  const color = (name: string): string => style.getPropertyValue(name).trim() || "gray";
  const colors = { run: color("--rlm-run"), error: color("--rlm-bad"), live: color("--rlm-live"), idle: color("--rlm-idle") };
  const spans = slots.map((id) => {
    const slot = store.rows.get(id);
    return slot ? { state: slot.state, ms: latency(slot, now) } : { state: "waiting", ms: null };
  });
  const longest = spans.reduce((most, span) => Math.max(most, span.ms ?? 0), 1);
  // With more slots than pixels a column stands for the slowest of several, and for any error.
  const columns = Math.min(spans.length, Math.floor(width / 2));
  const step = width / Math.max(columns, 1);
  for (let column = 0; column < columns; column++) {
    const from = Math.floor((column * spans.length) / columns);
    const to = Math.floor(((column + 1) * spans.length) / columns);
    const group = spans.slice(from, Math.max(to, from + 1));
    const ms = group.reduce((most, span) => Math.max(most, span.ms ?? 0), 0);
    const has = (state: string): boolean => group.some((span) => span.state === state);
    context.fillStyle = has("error") ? colors.error
      : has("running") ? colors.live
      : ms > 0 ? colors.run : colors.idle;
    const height = ms > 0 || has("error") ? Math.max(3, Math.sqrt(ms / longest) * HEIGHT) : 2;
    context.fillRect(column * step, HEIGHT - height, Math.max(1, step - (step > 3 ? 1 : 0)), height);
  }
}
