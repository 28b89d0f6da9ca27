// Draws the rows of a log that are in sight. The element scrolls as if all of them were there.
import { walk } from "./ansi";
import { type Lines, overwritten } from "./lines";

// Browsers know no element that is much higher than this; beyond it a pixel of the scroll bar is more than a pixel.
const HIGHEST = 12_000_000;

export class LogView {
  wrap = false;
  private pattern: RegExp | null = null;
  private current = -1;
  private followed = true;
  private asked = 0;
  private drawn = "";
  private lineHeight = 0;
  /** Of a row on average; those of a log that is not wrapped are all of this height. */
  private rowHeight = 0;
  private readonly window = document.createElement("div");
  private readonly rows = document.createElement("div");
  private readonly spacer = document.createElement("div");
  private readonly resized: ResizeObserver;

  constructor(
    private readonly element: HTMLElement,
    private lines: Lines,
    private readonly onFollow: (follows: boolean) => void,
  ) {
    this.window.className = "log-window";
    this.rows.className = "log-rows";
    this.spacer.className = "log-spacer";
    this.window.append(this.rows);
    element.replaceChildren(this.window, this.spacer);
    element.addEventListener("scroll", this.scrolled, { passive: true });
    this.resized = new ResizeObserver(() => this.refresh());
    this.resized.observe(element);
  }

  close(): void {
    this.resized.disconnect();
    cancelAnimationFrame(this.asked);
    this.element.removeEventListener("scroll", this.scrolled);
  }

  show(lines: Lines): void {
    this.lines = lines;
    this.refresh();
  }

  set follow(value: boolean) {
    this.followed = value;
    if (value) this.refresh();
  }

  setWrap(value: boolean): void {
    this.wrap = value;
    this.element.classList.toggle("wrapped", value);
    this.refresh();
  }

  highlight(pattern: RegExp | null, current: number): void {
    this.pattern = pattern;
    this.current = current;
    this.refresh();
  }

  /** Draw with the next frame what has changed. */
  changed(): void {
    if (!this.asked) this.asked = requestAnimationFrame(() => this.frame());
  }

  private refresh(): void {
    this.drawn = "";
    this.rowHeight = 0;
    this.changed();
  }

  /** Bring a row into sight. */
  reveal(row: number): void {
    this.measure();
    const visible = this.element.clientHeight / this.rowHeight;
    const first = Math.max(0, row - Math.floor(visible / 3));
    this.element.scrollTop = (first * this.rowHeight) / this.scale;
    this.changed();
  }

  private readonly scrolled = () => {
    const { scrollTop, scrollHeight, clientHeight } = this.element;
    const follows = scrollTop + clientHeight >= scrollHeight - 2;
    if (follows !== this.followed) {
      this.followed = follows;
      this.onFollow(follows);
    }
    this.draw();
  };

  private get height(): number {
    return this.lines.size * this.rowHeight;
  }

  /** How many pixels of rows one pixel of the scroll bar stands for. */
  private get scale(): number {
    const room = this.element.clientHeight;
    const height = this.height;
    return height <= HIGHEST ? 1 : (height - room) / (HIGHEST - room);
  }

  private measure(): void {
    if (this.rowHeight) return;
    this.lineHeight = Number.parseFloat(getComputedStyle(this.element).lineHeight) || 18;
    this.rowHeight = this.lineHeight;
  }

  /** Guess the height of rows that are wrapped from those that are drawn. Whether that changed anything. */
  private guess(): boolean {
    const drawn = this.rows.childElementCount;
    if (!this.wrap || !drawn) return false;
    const height = Math.max(this.lineHeight, this.rows.offsetHeight / drawn);
    const differs = Math.abs(height - this.rowHeight) > this.rowHeight * (drawn === this.lines.size ? 0.01 : 0.25);
    if (differs) this.rowHeight = height;
    return differs;
  }

  private frame(): void {
    this.asked = 0;
    this.measure();
    this.layOut();
    if (this.guess()) this.layOut();
  }

  private layOut(): void {
    const height = `${Math.min(this.height, HIGHEST)}px`;
    if (this.spacer.style.height !== height) this.spacer.style.height = height;
    if (this.followed) this.element.scrollTop = this.element.scrollHeight;
    this.draw();
  }

  private draw(): void {
    this.measure();
    const { lines, element, rowHeight } = this;
    const room = element.clientHeight;
    const shown = Math.ceil(room / this.lineHeight) + 1;
    const atEnd = element.scrollTop + room >= element.scrollHeight - 1;
    const top = element.scrollTop * this.scale;
    const fits = this.height <= room;
    const first = fits ? 0 : Math.max(0, Math.min(Math.floor(top / rowHeight), lines.size - 1));
    const from = this.wrap && atEnd && !fits ? Math.max(0, lines.size - shown) : first;
    const until = Math.min(lines.size, first + shown);
    this.window.style.height = `${room}px`;
    this.window.style.marginBottom = `${-room}px`;
    // Rows that are wrapped have any height: at the end of the log the last of them counts, elsewhere the first.
    const sticks = atEnd && !fits;
    this.rows.classList.toggle("at-end", sticks);
    this.rows.style.transform = sticks || fits ? "" : `translateY(${-(top - first * rowHeight)}px)`;
    // Only the last row still grows.
    const key = `${from} ${until} ${this.wrap} ${until && until === lines.size ? lines.length(until - 1) : ""}`;
    if (key === this.drawn) return;
    this.drawn = key;
    const fragment = document.createDocumentFragment();
    for (let row = from; row < until; row += 1) this.row(fragment, row);
    this.rows.replaceChildren(fragment);
  }

  private row(into: DocumentFragment, row: number): void {
    const { lines } = this;
    const element = document.createElement("span");
    element.className = row === this.current ? "row current" : "row";
    if (!lines.isContinued(row)) element.dataset["n"] = String(lines.number(row));
    const gap = lines.gaps.get(row);
    if (gap) element.dataset["gap"] = gap;
    let look = lines.lookAt(row);
    const marks = this.pattern ? found(this.pattern, lines.text(row)) : [];
    let at = 0;
    for (const { text, err } of lines.pieces(row)) {
      look = walk(overwritten(text), look, (piece, style) => {
        for (const [part, marked] of cut(piece, at, marks)) {
          const span = document.createElement(marked ? "mark" : "span");
          span.textContent = part;
          span.className = err ? `err ${style.classes}` : style.classes;
          if (style.color) span.style.color = style.color;
          if (style.background) span.style.background = style.background;
          element.append(span);
        }
        at += piece.length;
      });
    }
    into.append(element);
    if (lines.ends(row)) into.append("\n");
  }
}

function found(pattern: RegExp, text: string): [number, number][] {
  const marks: [number, number][] = [];
  for (const match of text.matchAll(pattern)) {
    if (match[0]) marks.push([match.index, match.index + match[0].length]);
    if (marks.length >= 1000) break;
  }
  return marks;
}

/** The parts of a piece that begins at a place of its line, and whether each is marked. */
function cut(piece: string, at: number, marks: [number, number][]): [string, boolean][] {
  if (!marks.length) return [[piece, false]];
  const parts: [string, boolean][] = [];
  let from = 0;
  for (const [begin, end] of marks) {
    const first = Math.max(from, begin - at);
    const last = Math.min(piece.length, end - at);
    if (last <= first) continue;
    if (first > from) parts.push([piece.slice(from, first), false]);
    parts.push([piece.slice(first, last), true]);
    from = last;
  }
  if (from < piece.length) parts.push([piece.slice(from), false]);
  return parts;
}
