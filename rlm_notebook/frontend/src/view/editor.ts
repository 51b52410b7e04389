// Texts that the user edits: where a run stands still, and where it is forked.

import { element } from "./dom";

const MOST_LINES = 18;

export class Editors {
  readonly root = element("div", "rlm-editors");
  private texts: Record<string, string> = {};

  constructor(private names: Record<string, string>) {}

  /** Call a text by another name from now on. */
  rename(name: string, words: string): void {
    this.names = { ...this.names, [name]: words };
  }

  /** Show these texts; those of `folded` are folded away until they are wanted. */
  show(texts: Record<string, string>, folded: (name: string, text: string) => boolean): void {
    this.texts = texts;
    this.root.replaceChildren(
      ...Object.entries(texts).map(([name, text]) => this.editor(name, text, folded(name, text))),
    );
  }

  /** What was changed. */
  edits(): Record<string, string> {
    const edits: Record<string, string> = {};
    for (const area of this.root.querySelectorAll("textarea")) {
      const name = area.dataset.name ?? "";
      if (area.value !== this.texts[name]) edits[name] = area.value;
    }
    return edits;
  }

  private editor(name: string, text: string, folded: boolean): HTMLElement {
    const area = element("textarea");
    area.value = text;
    area.dataset.name = name;
    area.spellcheck = false;
    area.rows = Math.min(MOST_LINES, Math.max(1, text.split("\n").length));
    const words = (text === "" ? this.names[`${name}, empty`] : undefined) ?? this.names[name] ?? name;
    area.setAttribute("aria-label", words);
    const view = element("details", "rlm-editor");
    view.open = !folded;
    view.append(element("summary", "", words), area);
    return view;
  }
}
