// @vitest-environment jsdom
import { afterEach, beforeEach, describe, expect, test, vi } from "vitest";
import type { Incoming, Outgoing, Row } from "../src/model/messages";
import widget, { type Model } from "../src/widget";
import { summary } from "./sample";

class FakeModel implements Model {
  sent: Outgoing[] = [];
  constructor(readonly place: string) {}
  get(_: "place"): string { return this.place; }
  private listeners = new Set<(message: Incoming) => void>();
  on(_: "msg:custom", callback: (message: Incoming) => void): void { this.listeners.add(callback); }
  send(message: Outgoing): void { this.sent.push(message); }
  receive(message: Incoming): void { for (const listener of this.listeners) listener(message); }
}

const row = (id: number, parent: number | null, kind: string, more: Partial<Row> = {}): Row =>
  ({ id, parent, kind, state: "ok", label: `${kind} ${id}`, submitted: 0, started: 0, ended: 10, ...more });

const snapshot = (seq: number, rows: Row[], more: object = {}): Incoming =>
  ({ type: "snapshot", seq, part: 0, parts: 1, rows, summary: summary(), ended: false, ...more });

let model: FakeModel;
let count = 0;
let el: HTMLElement;
let cleanup: () => void;

beforeEach(() => {
  vi.useFakeTimers();
  vi.stubGlobal("ResizeObserver", class { observe(): void {} disconnect(): void {} });
  vi.spyOn(HTMLCanvasElement.prototype, "getContext").mockReturnValue(null);
  model = new FakeModel(`rlm-place-${count++}`);
  el = document.createElement("div");
  document.body.append(el);
  cleanup = widget.render({ model, el });
});
afterEach(() => {
  cleanup();
  el.remove();
  vi.useRealTimers();
  vi.unstubAllGlobals();
  vi.restoreAllMocks();
});

const draw = (): void => void vi.advanceTimersByTime(150);
const rowsShown = (): string[] => {
  const shown = [...el.querySelectorAll<HTMLElement>(".rlm-row")];
  const top = (node: HTMLElement): number => Number(/\d+/.exec(node.style.transform)?.[0]);
  return shown.sort((a, b) => top(a) - top(b)).map((node) => node.querySelector(".rlm-label")?.textContent ?? "");
};
const click = (selector: string): void => el.querySelector<HTMLElement>(selector)?.click();
const press = (key: string): void => {
  el.querySelector(".rlm-tree")?.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
  draw();
};

describe("the view", () => {
  test("asks for a snapshot at once and shows its tree", () => {
    expect(model.sent).toEqual([{ type: "snapshot" }]);
    model.receive(snapshot(1, [row(1, null, "run"), row(2, 1, "turn"), row(3, 2, "code")]));
    draw();
    expect(rowsShown()).toEqual(["run 1", "turn 2", "code 3"]);
  });

  test("asks again when a message was lost, once a second at most", () => {
    model.receive(snapshot(1, [row(1, null, "run")]));
    const lost = (seq: number): Incoming =>
      ({ type: "rows", seq, rows: [], summary: summary(), ended: false });
    model.receive(lost(3));
    model.receive(lost(5));
    expect(model.sent.filter((m) => m.type === "snapshot")).toHaveLength(1);
    vi.advanceTimersByTime(1100);
    expect(model.sent.filter((m) => m.type === "snapshot")).toHaveLength(2);
    model.receive(snapshot(6, [row(1, null, "run"), row(2, 1, "turn")]));
    vi.advanceTimersByTime(5000);
    expect(model.sent.filter((m) => m.type === "snapshot")).toHaveLength(2);
  });

  test("a run that has fallen silent is asked, ever more seldom, and the reader is told", () => {
    model.receive(snapshot(1, [row(1, null, "run", { state: "running", ended: null })]));
    const asked = (): number => model.sent.filter((m) => m.type === "snapshot").length;
    vi.advanceTimersByTime(4000);
    expect(asked()).toBe(1);
    vi.advanceTimersByTime(2000); // perhaps its last message was lost
    expect(asked()).toBe(2);
    vi.advanceTimersByTime(60_000);
    expect(el.querySelector(".rlm-note")?.textContent).toContain("does not answer");
    expect(asked()).toBeLessThan(10);
    model.receive(snapshot(2, [row(1, null, "run")], { ended: true }));
    draw();
    expect(el.querySelector(".rlm-note")?.textContent).toBe("");
    const after = asked();
    vi.advanceTimersByTime(120_000);
    expect(asked()).toBe(after);
  });

  test("a closed comm is no error", () => {
    model.receive(snapshot(1, [row(1, null, "run", { state: "running", ended: null })]));
    draw();
    model.send = () => { throw new Error("comm is closed"); };
    vi.spyOn(console, "debug").mockReturnValue();
    click(".rlm-stop");
    expect(el.querySelector(".rlm-stop")?.textContent).toBe("stopping…");
  });

  test("says that no kernel is connected instead of loading for ever", () => {
    vi.advanceTimersByTime(3100);
    expect(el.querySelector(".rlm-note")?.textContent).toContain("No kernel");
    model.receive(snapshot(1, [row(1, null, "run")]));
    draw();
    expect(el.querySelector(".rlm-note")?.textContent).toBe("");
  });

  test("Stop is there while the run goes on, and says at once that it was heard", () => {
    model.receive(snapshot(1, [row(1, null, "run", { state: "running", ended: null })]));
    draw();
    const stop = el.querySelector<HTMLButtonElement>(".rlm-stop");
    expect(stop?.hidden).toBe(false);
    stop?.click();
    expect(model.sent.at(-1)).toEqual({ type: "stop" });
    expect(stop?.textContent).toBe("stopping…");
    expect(stop?.disabled).toBe(true);
    model.receive(snapshot(2, [row(1, null, "run")], { ended: true }));
    draw();
    expect(stop?.hidden).toBe(true);
  });

  test("the reason of a stop stands in the header", () => {
    const over = summary({ state: "cancelled", outcome: "stopped", stopped_by: "max_calls: 12 LM calls" });
    model.receive(snapshot(1, [row(1, null, "run")], { ended: true, summary: over }));
    draw();
    expect(el.querySelector(".rlm-chip")?.textContent).toBe("⊘ stopped (max_calls: 12 LM calls)");
  });

  test("text of a model is shown as text, never as HTML", () => {
    const evil = "<img src=x onerror=alert(1)>";
    model.receive(snapshot(1, [row(1, null, "run", { label: evil, detail: evil, error: evil, model: evil })],
      { summary: summary({ answer: evil, warnings: [evil] }), ended: true }));
    draw();
    click(".rlm-row");
    draw();
    model.receive({ type: "fields", id: 1, fields: [{ name: evil, text: evil, chars: evil.length, code: true }] });
    draw();
    expect(el.querySelector("img")).toBeNull();
    expect(el.querySelector("pre")?.textContent).toBe(evil);
  });

  test("a text that is being written grows where it stands", () => {
    const writing = (chars: number): Row => row(1, null, "lm_call", { state: "running", ended: null, chars });
    const fields = (text: string): Incoming =>
      ({ type: "fields", id: 1, fields: [{ name: "response", text, chars: text.length, code: false }] });
    model.receive(snapshot(1, [writing(1)]));
    draw();
    click(".rlm-row");
    draw();
    model.receive(fields("a"));
    const body = el.querySelector(".rlm-field pre");
    const asked = model.sent.length;
    model.receive({ type: "rows", seq: 2, rows: [writing(2)], summary: summary(), ended: false });
    vi.advanceTimersByTime(400);
    expect(model.sent.slice(asked)).toEqual([{ type: "fields", id: 1 }]);
    model.receive(fields("ab"));
    expect(el.querySelector(".rlm-field pre")).toBe(body);
    expect(body?.textContent).toBe("ab");
  });

  test("a call that was sent again shows its failed requests, its pauses, and its rates", () => {
    model.receive(snapshot(1, [
      row(1, null, "lm_call", {
        ended: 1000, pieces: [[0, 100, "failed"], [100, 300, "pause"]], first: 500, tokens_in: 1, tokens_out: 20,
      }),
    ]));
    draw();
    const kinds = [...el.querySelectorAll<HTMLElement>(".rlm-row .rlm-piece")].map((piece) => piece.dataset.kind);
    expect(kinds).toEqual(["failed", "pause"]);
    click(".rlm-row");
    draw();
    const facts = el.querySelector(".rlm-facts")?.textContent ?? "";
    expect(facts).toContain("time to first token200 ms");
    expect(facts).toContain("speed40.0 tokens/s");
  });

  test("a click opens the texts of a row, and long ones are fetched part by part", () => {
    model.receive(snapshot(1, [row(1, null, "run")]));
    draw();
    click(".rlm-row");
    draw();
    expect(model.sent.at(-1)).toEqual({ type: "fields", id: 1 });
    model.receive({ type: "fields", id: 1, fields: [{ name: "prompt", text: "a😀", chars: 5, code: false }] });
    click(".rlm-more");
    expect(model.sent.at(-1)).toEqual({ type: "text", id: 1, name: "prompt", offset: 2 });
    model.receive({ type: "text", id: 1, name: "prompt", offset: 2, text: "bcd", chars: 5 });
    expect(el.querySelector("pre")?.textContent).toBe("a😀bcd");
    expect(el.querySelector<HTMLElement>(".rlm-more")?.hidden).toBe(true);
  });

  test("texts whose answer is lost are asked for again, and then given up", () => {
    model.receive(snapshot(1, [row(1, null, "run")], { ended: true }));
    draw();
    click(".rlm-row");
    vi.advanceTimersByTime(20_000);
    expect(model.sent.filter((m) => m.type === "fields")).toHaveLength(3);
    expect(el.querySelector(".rlm-texts")?.textContent).toContain("does not answer");
  });

  test("a text that has grown by hand stays when the row changes its state", () => {
    const open = (state: string): Row => row(1, null, "run", { state });
    model.receive(snapshot(1, [open("running")]));
    draw();
    click(".rlm-row");
    draw();
    const fields: Incoming = { type: "fields", id: 1, fields: [{ name: "context", text: "ab", chars: 4, code: false }] };
    model.receive(fields);
    model.receive({ type: "text", id: 1, name: "context", offset: 2, text: "cd", chars: 4 });
    model.receive(snapshot(2, [open("ok")]));
    vi.advanceTimersByTime(400);
    expect(model.sent.filter((m) => m.type === "fields")).toHaveLength(2);
    model.receive(fields);
    expect(el.querySelector("pre")?.textContent).toBe("abcd");
  });

  test("arrow keys move, Enter opens the panel, Escape closes it", () => {
    const panel = (): boolean | undefined => !el.querySelector<HTMLElement>(".rlm-panel")?.hidden;
    model.receive(snapshot(1, [row(1, null, "run"), row(2, 1, "turn"), row(3, 2, "code")]));
    draw();
    press("End");
    expect(el.querySelector('[aria-selected="true"]')?.getAttribute("data-id")).toBe("3");
    expect(panel()).toBe(false);
    press("Enter");
    expect(panel()).toBe(true);
    for (let i = 0; i < 20; i++) {
      el.querySelector(".rlm-tree")?.dispatchEvent(new KeyboardEvent("keydown", { key: i % 2 ? "End" : "Home" }));
      vi.advanceTimersByTime(20);
    }
    expect(model.sent.filter((m) => m.type === "fields").length).toBeLessThan(5);
    press("Escape");
    expect(panel()).toBe(false);
    press("Enter");
    const inside = new KeyboardEvent("keydown", { key: "Escape", bubbles: true });
    el.querySelector(".rlm-close")?.dispatchEvent(inside);
    draw();
    expect(panel()).toBe(false);
  });

  test("the ruler measures the axis of the row below it", () => {
    const ends = { ended: 2000 };
    model.receive(snapshot(1, [row(1, null, "batch", ends), row(2, 1, "slot", { index: 0 })],
      { summary: summary({ elapsed: 8000 }), ended: true }));
    draw();
    const ruler = el.querySelector<HTMLElement>(".rlm-ruler");
    expect(ruler?.textContent).toContain("8.00 s");
    const tree = el.querySelector<HTMLElement>(".rlm-tree");
    if (tree) tree.scrollTop = 24;
    tree?.dispatchEvent(new Event("scroll"));
    draw();
    expect(ruler?.dataset.axis).toBe("batch");
    expect(ruler?.textContent).toContain("2.00 s");
  });

  test("an error stands on its row, and a failed batch says how many failed", () => {
    model.receive(snapshot(1, [
      row(1, null, "batch", { size: 2, limit: 4, ended: 10 }),
      row(2, 1, "slot", { index: 0, state: "error", error: "http: rate limited", detail: "the prompt" }),
      row(3, 1, "slot", { index: 1, state: "empty", detail: "the prompt" }),
    ]));
    draw();
    const text = (id: number): string | null | undefined =>
      el.querySelector(`[data-id="${id}"] .rlm-detail`)?.textContent;
    expect(el.querySelector('[data-id="1"] .rlm-failed')?.textContent).toBe("1 failed");
    expect(text(2)).toBe("http: rate limited");
    expect(text(3)).toBe("(the text is empty)");
  });

  test("rows fold by mouse and by keyboard", () => {
    model.receive(snapshot(1, [row(1, null, "run"), row(2, 1, "turn"), row(3, 2, "code")]));
    draw();
    click('[data-id="2"] .rlm-fold');
    draw();
    expect(rowsShown()).toEqual(["run 1", "turn 2"]);
    press("ArrowDown");
    press("ArrowDown");
    expect(el.querySelector('[aria-selected="true"]')?.getAttribute("data-id")).toBe("2");
    press("ArrowRight");
    expect(rowsShown()).toEqual(["run 1", "turn 2", "code 3"]);
    press("ArrowRight");
    press("ArrowLeft");
    press("ArrowLeft");
    press("ArrowLeft");
    press("ArrowLeft");
    expect(rowsShown()).toEqual(["run 1"]);
  });

  test("only the rows in sight are in the document", () => {
    const slots = Array.from({ length: 10_000 }, (_, i) => row(3 + i, 2, "slot", { index: i }));
    model.receive(snapshot(1, [row(1, null, "run"), row(2, 1, "batch", { size: 10_000 }), ...slots]));
    draw();
    click('[data-id="2"] .rlm-fold');
    draw();
    expect(el.querySelectorAll(".rlm-row").length).toBeLessThan(60);
    expect(el.querySelector<HTMLElement>(".rlm-rows")?.style.height).toBe(`${10_002 * 24}px`);
  });

  test("folds and selection survive when the same run is shown anew", () => {
    const tree = [row(1, null, "run"), row(2, 1, "turn"), row(3, 2, "code")];
    model.receive(snapshot(1, tree));
    draw();
    click('[data-id="2"] .rlm-fold');
    cleanup();
    cleanup = widget.render({ model, el });
    model.receive(snapshot(2, tree));
    draw();
    expect(rowsShown()).toEqual(["run 1", "turn 2"]);
  });

  test("the live view takes the place of the static tree of its run, and gives it back", () => {
    const stop = widget.initialize({ model });
    const outer = document.createElement("div");
    outer.id = model.place;
    outer.innerHTML = "<div>static</div>";
    vi.advanceTimersByTime(500);
    document.body.append(outer);
    vi.advanceTimersByTime(150);
    expect((outer.children[0] as HTMLElement).hidden).toBe(false); // nothing to show instead yet
    model.receive(snapshot(1, [row(1, null, "run")], { ended: true }));
    vi.advanceTimersByTime(150);
    draw();
    expect(outer.querySelector(".rlm-row")).not.toBeNull();
    expect((outer.children[0] as HTMLElement).hidden).toBe(true);
    const again = outer.cloneNode(false) as HTMLElement; // the notebook renders its output anew
    again.innerHTML = "<div>static</div>";
    outer.replaceWith(again);
    vi.advanceTimersByTime(150);
    expect(again.querySelector(".rlm-view")).not.toBeNull();
    stop();
    expect(again.querySelector(".rlm-view")).toBeNull();
    expect((again.children[0] as HTMLElement).hidden).toBe(false);
    again.remove();
  });

  test("nothing is left behind when the view is removed", () => {
    cleanup();
    const sent = model.sent.length;
    vi.advanceTimersByTime(10_000);
    expect(model.sent).toHaveLength(sent);
  });
});

describe("a run that stands still", () => {
  const stand = (seq: number, paused: number[]): Incoming =>
    snapshot(seq, [row(1, null, "run", { state: "running" })], { paused, pausing: false });
  const gate = (id: number, texts: Record<string, string>): Incoming =>
    ({ type: "gate", id, words: "turn 1: before the code", actions: ["go", "run", "skip", "stop"], texts });
  const asked = (type: string): Outgoing[] => model.sent.filter((message) => message.type === type);
  const area = (name: string): HTMLTextAreaElement =>
    el.querySelector<HTMLTextAreaElement>(`textarea[data-name="${name}"]`)!;

  test("asks once what can be done there, and again only if no answer comes", () => {
    model.receive(stand(1, [7]));
    draw();
    draw();
    expect(asked("gate")).toEqual([{ type: "gate", id: 7 }]);
    vi.advanceTimersByTime(2500);
    expect(asked("gate").length).toBe(2);
    model.receive(gate(7, { code: "x = 1" }));
    vi.advanceTimersByTime(5000);
    expect(asked("gate").length).toBe(2);
    model.receive(stand(2, [8])); // the next one: what stood there is not asked for with each frame
    draw();
    draw();
    expect(asked("gate").length).toBe(3);
  });

  test("sends what was edited, and nothing else", () => {
    model.receive(stand(1, [7]));
    draw();
    model.receive(gate(7, { code: "x = 1", response: "" }));
    expect(el.querySelector<HTMLElement>(".rlm-gate")?.hidden).toBe(false);
    area("code").value = "x = 2";
    click('[data-action="skip"]');
    expect(asked("decide")).toEqual([{ type: "decide", id: 7, action: "skip", edits: { code: "x = 2" } }]);
  });

  test("keeps what was edited when it is refused", () => {
    model.receive(stand(1, [7]));
    draw();
    model.receive(gate(7, { prompts: "[]" }));
    area("prompts").value = "[";
    click('[data-action="go"]');
    const go = el.querySelector<HTMLButtonElement>('[data-action="go"]')!;
    expect(go.disabled).toBe(true);
    model.receive({ type: "refused", id: 7, message: "no JSON list" });
    expect(go.disabled).toBe(false);
    expect(area("prompts").value).toBe("[");
    expect(el.querySelector(".rlm-gate-problem")?.textContent).toBe("no JSON list");
  });

  test("goes on by keyboard, and is gone when the run goes on", () => {
    model.receive(stand(1, [7]));
    draw();
    model.receive(gate(7, { code: "x" }));
    area("code").dispatchEvent(new KeyboardEvent("keydown", { key: "Enter", ctrlKey: true, bubbles: true }));
    expect(asked("decide")).toEqual([{ type: "decide", id: 7, action: "go", edits: {} }]);
    model.receive(stand(2, []));
    draw();
    expect(el.querySelector<HTMLElement>(".rlm-gate")?.hidden).toBe(true);
  });
});

describe("a film", () => {
  const at = (seq: number, t: number): Incoming =>
    snapshot(seq, [row(1, null, "run")], { ended: true, film: { t, length: 1000, position: 3, events: 9 } });
  const asked = (): Outgoing[] => model.sent.filter(({ type }) => type === "seek" || type === "step");

  test("is played at its speed, one question at a time, to its end", () => {
    model.receive(at(1, 1000));
    draw();
    click(".rlm-play");
    expect(asked()).toEqual([{ type: "seek", t: 0 }]);
    vi.advanceTimersByTime(500);
    expect(asked().length).toBe(1); // unanswered
    model.receive(at(2, 0));
    const last = asked().at(-1)!;
    expect(last.type === "seek" && last.t).toBeCloseTo(500, -2);
    for (let seq = 3; seq < 30; seq++) {
      vi.advanceTimersByTime(50);
      const message = asked().at(-1)!;
      model.receive(at(seq, message.type === "seek" ? message.t : 0));
    }
    expect(asked().at(-1)).toEqual({ type: "seek", t: 1000 });
    const count = asked().length;
    vi.advanceTimersByTime(1000);
    expect(asked().length).toBe(count);
  });

  test("goes event by event, and a run that goes on has no such controls", () => {
    model.receive(at(1, 500));
    draw();
    click('[aria-label="one event back"]');
    expect(asked()).toEqual([{ type: "step", by: -1 }]);
    model.receive(snapshot(2, [row(1, null, "run")]));
    draw();
    expect(el.querySelector<HTMLElement>(".rlm-film")?.hidden).toBe(true);
  });
});

describe("a fork", () => {
  const asked = (type: string): Outgoing[] => model.sent.filter((message) => message.type === type);
  const rows = [row(1, null, "run"), row(2, 1, "turn"), row(3, 2, "code"), row(4, 3, "batch"), row(5, 4, "slot")];
  const select = (id: number): void => {
    click(`.rlm-row[data-id="${id}"]`);
    draw();
  };
  const shown = (selector: string): boolean => el.querySelector<HTMLElement>(selector)?.hidden === false;
  const area = (name: string): HTMLTextAreaElement =>
    el.querySelector<HTMLTextAreaElement>(`.rlm-fork textarea[data-name="${name}"]`)!;

  test("is begun with what was changed, and says which run it is", () => {
    model.receive(snapshot(1, rows, { forks: true, ended: true }));
    draw();
    select(2);
    click(".rlm-fork-button");
    expect(asked("forkable")).toEqual([{ type: "forkable", id: 2 }]);
    model.receive({ type: "forkable", id: 2, texts: { code: "x = 1", prompt: "", response: "r", model: "m" } });
    expect(shown(".rlm-fork")).toBe(true);
    area("code").value = "x = 2";
    const begin = el.querySelector<HTMLButtonElement>(".rlm-fork .rlm-gate-buttons button")!;
    begin.click();
    begin.click(); // a second click begins no second fork
    expect(asked("fork")).toEqual([{ type: "fork", id: 2, edits: { code: "x = 2" } }]);
    model.receive({ type: "refused", id: 2, message: "no such model" });
    expect(el.querySelector(".rlm-fork .rlm-gate-problem")?.textContent).toBe("no such model");
    expect(area("code").value).toBe("x = 2");
    begin.click();
    model.receive({ type: "forked", id: 2, message: "run 3 begins below" });
    expect(el.querySelector(".rlm-fork-done")?.textContent).toBe("run 3 begins below");
    expect(area("code")).toBeNull();
  });

  test("is possible at turns, blocks and calls, and closes when another row is shown", () => {
    model.receive(snapshot(1, rows, { forks: true }));
    draw();
    for (const [id, can] of [[1, false], [2, true], [3, true], [4, false], [5, true]] as const) {
      select(id);
      expect(shown(".rlm-fork-button")).toBe(can);
    }
    click(".rlm-fork-button");
    model.receive({ type: "forkable", id: 5, texts: { prompt: "p" } });
    expect(shown(".rlm-fork")).toBe(true);
    area("prompt").dispatchEvent(new KeyboardEvent("keydown", { key: "Enter", ctrlKey: true, bubbles: true }));
    expect(asked("fork")).toEqual([{ type: "fork", id: 5, edits: {} }]);
    select(3);
    expect(shown(".rlm-fork")).toBe(false);
    model.receive({ type: "forked", id: 5, message: "late" });
    expect(shown(".rlm-fork")).toBe(false);
  });

  test("cannot be begun where nobody would begin it", () => {
    model.receive(snapshot(1, rows));
    draw();
    select(2);
    expect(shown(".rlm-fork-button")).toBe(false);
  });
});
