// What the colours and marks of the bars mean.

import { element } from "./dom";

export function legend(): HTMLElement {
  const made = element("div", "rlm-legend");
  const sample = (name: string, text: string, title: string): void => {
    const item = element("span", "rlm-item");
    item.title = title;
    const swatch = element("span", "rlm-swatch");
    swatch.append(element("i", name));
    item.append(swatch, element("span", "", text));
    made.append(item);
  };
  sample("rlm-wait", "queue wait", "submitted, but its request is not sent yet");
  sample("rlm-run", "latency", "from its own start to its own end");
  sample("rlm-piece rlm-failed-piece", "failed request", "a request of this call that failed");
  sample("rlm-piece rlm-pause-piece", "back-off", "nothing was sent: it waited to be sent again");
  sample("rlm-piece rlm-hedge-piece", "second request", "sent beside a slow one: the first answer wins");
  sample(
    "rlm-mark",
    "approximate latency",
    "where the slot would end if batch duration / number of prompts were its latency",
  );
  sample(
    "rlm-own",
    "a batch's own time axis",
    "slots run from their batch's submission to its end; all other rows stand on the axis of the run",
  );
  return made;
}
