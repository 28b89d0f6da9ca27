// The lines of a log, as they come. A hundred megabytes are some million lines: each is a slice of the text it came in.
import { hasEscapes, lookAfter, type Look, PLAIN, stripped } from "./ansi";

export interface Piece {
  readonly text: string;
  readonly err: boolean;
}

interface Row {
  pieces: Piece[];
  length: number;
}

// A line that is longer is shown in several rows.
const LONGEST = 4000;
/** More than this is not kept: a browser has to hold all of it. */
export const MOST_CHARS = 400_000_000;

export class Lines {
  /** A text alone is a row of standard output. */
  private readonly rows: (string | Row)[] = [];
  /** Rows that go on with the line of the row before, in their order. */
  private readonly continued: number[] = [];
  /** The looks that rows begin with, where those are not plain. */
  private readonly looks = new Map<number, Look>();
  /** Notes on what is missing before a row. */
  readonly gaps = new Map<number, string>();
  private look: Look = PLAIN;
  private open: Row | null = null;
  private chars = 0;
  full = false;

  get size(): number {
    return this.rows.length;
  }

  append(text: string, err: boolean): void {
    if (this.chars > MOST_CHARS) {
      this.full = true;
      return;
    }
    this.chars += text.length;
    let from = 0;
    while (from < text.length) {
      const end = text.indexOf("\n", from);
      const until = end < 0 ? text.length : end;
      this.extend(text, from, until, err);
      if (end >= 0) this.close();
      from = until + 1;
    }
  }

  /** Note that something is missing here. */
  gap(note: string): void {
    if (this.open) this.close();
    this.gaps.set(this.rows.length, note);
  }

  private extend(text: string, from: number, until: number, err: boolean): void {
    let at = from;
    do {
      if (this.open && this.open.length >= LONGEST) {
        this.close();
        this.continued.push(this.rows.length);
      }
      const room = LONGEST - (this.open?.length ?? 0);
      let cut = Math.min(until, at + room);
      // Characters beyond the first 65,536 are two halves here.
      if (cut < until && (text.charCodeAt(cut - 1) & 0xfc00) === 0xd800) cut += 1;
      this.add(text.slice(at, cut), err);
      at = cut;
    } while (at < until);
  }

  private add(text: string, err: boolean): void {
    if (!this.open) {
      if (this.look !== PLAIN) this.looks.set(this.rows.length, this.look);
      this.open = { pieces: [], length: 0 };
      this.rows.push(this.open);
    }
    const last = this.open.pieces.at(-1);
    if (last && last.err === err) this.open.pieces[this.open.pieces.length - 1] = { text: last.text + text, err };
    else if (text) this.open.pieces.push({ text, err });
    this.open.length += text.length;
    if (hasEscapes(text)) this.look = lookAfter(text, this.look);
  }

  private close(): void {
    if (!this.open) this.add("", false);
    const { pieces } = this.open!;
    if (pieces.length === 0) this.rows[this.rows.length - 1] = "";
    else if (pieces.length === 1 && !pieces[0]!.err) this.rows[this.rows.length - 1] = pieces[0]!.text;
    this.open = null;
  }

  pieces(row: number): readonly Piece[] {
    const found = this.rows[row]!;
    return typeof found === "string" ? [{ text: found, err: false }] : found.pieces;
  }

  length(row: number): number {
    return this.rows[row]!.length;
  }

  /** What of a row can be searched. */
  text(row: number): string {
    const found = this.rows[row]!;
    const texts = typeof found === "string" ? [found] : found.pieces.map((piece) => piece.text);
    return stripped(texts.map(overwritten).join(""));
  }

  lookAt(row: number): Look {
    return this.looks.get(row) ?? PLAIN;
  }

  isContinued(row: number): boolean {
    const at = this.before(row + 1);
    return at > 0 && this.continued[at - 1] === row;
  }

  /** Whether a row's line ends with it. */
  ends(row: number): boolean {
    if (row + 1 < this.rows.length) return !this.isContinued(row + 1);
    return this.open === null;
  }

  /** The number of a row's line. */
  number(row: number): number {
    return row + 1 - this.before(row + 1);
  }

  /** How many rows before this one go on with a line. */
  private before(row: number): number {
    let low = 0;
    let high = this.continued.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.continued[middle]! < row) low = middle + 1;
      else high = middle;
    }
    return low;
  }
}

/** What is left of a line on a terminal after the cursor went back to its beginning, as progress bars do. */
export function overwritten(text: string): string {
  const line = text.endsWith("\r") ? text.slice(0, -1) : text;
  return line.includes("\r") ? line.slice(line.lastIndexOf("\r") + 1) : line;
}
