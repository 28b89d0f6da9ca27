// Finds the rows of a log that hold a text, a slice at a time so that the page goes on.
import type { Lines } from "./lines";

const SLICE = 20_000;

export class Search {
  readonly matches: number[] = [];
  readonly pattern: RegExp;
  private next = 0;
  private timer = 0;

  constructor(
    text: string,
    private readonly lines: Lines,
    private readonly onChange: () => void,
  ) {
    this.pattern = new RegExp(text.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"), "gi");
    this.go();
  }

  /** Look at what has come since. */
  go(): void {
    if (!this.timer) this.timer = window.setTimeout(() => this.look());
  }

  close(): void {
    clearTimeout(this.timer);
  }

  get complete(): boolean {
    return this.next >= this.lines.size;
  }

  private look(): void {
    this.timer = 0;
    const until = Math.min(this.lines.size, this.next + SLICE);
    // The last row may go on: it is looked at again.
    if (this.matches.at(-1) === this.next - 1 || this.next) {
      this.next = Math.max(0, this.next - 1);
      if (this.matches.at(-1) === this.next) this.matches.pop();
    }
    const before = this.matches.length;
    for (; this.next < until; this.next += 1) {
      this.pattern.lastIndex = 0;
      if (this.pattern.test(this.lines.text(this.next))) this.matches.push(this.next);
    }
    if (!this.complete) this.go();
    if (this.complete || this.matches.length !== before) this.onChange();
  }
}
