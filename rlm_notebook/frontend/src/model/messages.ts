// What Python sends and what it is asked. See rlm_notebook/view/widget.py and rows.py.

export type State =
  | "waiting" | "running" | "ok" | "empty" | "null" | "error"
  | "cancelled" | "not_sent" | "skipped" | "interrupted";

/** One span. Times in ms since the run began; absent fields have their default. */
export interface Row {
  id: number;
  parent: number | null;
  kind: "run" | "turn" | "lm_call" | "code" | "batch" | "slot" | string;
  state: State | string;
  label: string;
  detail?: string;
  error?: string;
  submitted?: number;
  started?: number | null;
  ended?: number | null;
  index?: number | null;
  size?: number | null;
  limit?: number | null;
  /** Batches: duration / number of prompts, what the reference library reports. Not a latency. */
  approximate?: number | null;
  tokens_in?: number | null;
  tokens_out?: number | null;
  model?: string;
  outcome?: string;
  /** What a call's latency is made of besides the request that answered: from, to, kind. */
  pieces?: [number, number, "failed" | "pause" | "hedge" | string][];
  /** Streamed calls: when the first text came. */
  first?: number | null;
  /** Open streamed calls: characters so far. */
  chars?: number | null;
}

export interface Summary {
  state: State | string;
  outcome: string;
  stopped_by: string;
  elapsed: number;
  calls: number;
  in_flight: number;
  waiting: number;
  errors: number;
  input_tokens: number;
  output_tokens: number;
  cost: number | null;
  /** True if a part of the cost comes from a price list. */
  cost_estimated: boolean;
  usage_complete: boolean;
  answer: string;
  warnings: string[];
  /** Of a fork: where it comes from. */
  origin: string;
}

/** A recorded run that is shown as a film. Times in ms. */
export interface Film {
  t: number;
  length: number;
  /** How many of the events have happened. */
  position: number;
  events: number;
}

interface Changes {
  film?: Film;
  /** Spans at which the run stands still for its user. */
  paused?: number[];
  /** Whether it will stand still at the next gate. */
  pausing?: boolean;
  seq: number;
  rows: Row[];
  summary: Summary;
  ended: boolean;
  /** Whether the run can be forked from here. */
  forks?: boolean;
}

export interface Field {
  name: string;
  text: string;
  chars: number;
  code: boolean;
}

/** What can be done where the run stands still. */
export interface Gate {
  type: "gate";
  id: number;
  words: string;
  actions: string[];
  /** What can be edited. */
  texts: Record<string, string>;
}

export type Incoming =
  | Gate
  | { type: "refused"; id: number; message: string }
  | { type: "forkable"; id: number; texts: Record<string, string> }
  | { type: "forked"; id: number; message: string }
  | ({ type: "rows" } & Changes)
  | ({ type: "snapshot"; part: number; parts: number } & Changes)
  | { type: "fields"; id: number; fields: Field[] }
  | { type: "text"; id: number; name: string; offset: number; text: string; chars: number };

export type Outgoing =
  | { type: "snapshot" }
  | { type: "fields"; id: number }
  | { type: "text"; id: number; name: string; offset: number }
  | { type: "stop" }
  | { type: "pause" }
  | { type: "gate"; id: number }
  | { type: "decide"; id: number; action: string; edits: Record<string, string> }
  | { type: "forkable"; id: number }
  | { type: "fork"; id: number; edits: Record<string, string> }
  | { type: "seek"; t: number }
  | { type: "step"; by: number };
