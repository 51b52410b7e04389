import type { Summary } from "../src/model/messages";

export const summary = (more: Partial<Summary> = {}): Summary => ({
  state: "running", outcome: "", stopped_by: "", elapsed: 1000, calls: 0, in_flight: 0, waiting: 0, errors: 0,
  input_tokens: 0, output_tokens: 0, cost: null, cost_estimated: false, usage_complete: true, answer: "", warnings: [], origin: "",
  ...more,
});
