// Colours and styles that programs write as escape sequences. Everything else that a terminal would act on is dropped.
export interface Look {
  readonly classes: string;
  readonly color?: string;
  readonly background?: string;
}

export const PLAIN: Look = { classes: "" };

interface Style {
  bold: boolean;
  dim: boolean;
  italic: boolean;
  underline: boolean;
  strike: boolean;
  inverse: boolean;
  fg: string;
  bg: string;
}

const NONE: Style = {
  bold: false, dim: false, italic: false, underline: false, strike: false, inverse: false, fg: "", bg: "",
};

// CSI with its parameters and final byte; OSC, DCS and the like with their end; two-character escapes; the escape alone.
const SEQUENCE =
  /\x1b\[([0-?]*)[ -/]*([@-~])|\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\|$)|\x1b[ -/]*[0-Z\\^-~]|\x1b/g;

export const hasEscapes = (text: string) => text.includes("\x1b");
export const stripped = (text: string) => (hasEscapes(text) ? text.replace(SEQUENCE, "") : text);

/** Go through a text: `emit` gets each piece with its look. Returns the look at the end. */
export function walk(text: string, look: Look, emit: (piece: string, look: Look) => void): Look {
  let from = 0;
  let now = look;
  SEQUENCE.lastIndex = 0;
  for (let match = SEQUENCE.exec(text); match; match = SEQUENCE.exec(text)) {
    if (match.index > from) emit(text.slice(from, match.index), now);
    from = match.index + match[0].length;
    if (match[2] === "m") now = changed(now, match[1] ?? "");
  }
  if (from < text.length) emit(text.slice(from), now);
  return now;
}

/** The look after a text. */
export const lookAfter = (text: string, look: Look) => walk(text, look, () => {});

// Looks are shared: a log has many pieces and few looks.
const styles = new WeakMap<Look, Style>([[PLAIN, NONE]]);
const looks = new Map<string, Look>();
const MOST_LOOKS = 4096;

function changed(look: Look, parameters: string): Look {
  const style = { ...(styles.get(look) ?? NONE) };
  const codes = parameters.split(/[;:]/).map((part) => Number(part) || 0);
  for (let at = 0; at < codes.length; at += 1) {
    const code = codes[at]!;
    if (code === 0) Object.assign(style, NONE);
    else if (code === 1) style.bold = true;
    else if (code === 2) style.dim = true;
    else if (code === 3) style.italic = true;
    else if (code === 4) style.underline = true;
    else if (code === 7) style.inverse = true;
    else if (code === 9) style.strike = true;
    else if (code === 22) style.bold = style.dim = false;
    else if (code === 23) style.italic = false;
    else if (code === 24) style.underline = false;
    else if (code === 27) style.inverse = false;
    else if (code === 29) style.strike = false;
    else if (code >= 30 && code <= 37) style.fg = String(code - 30);
    else if (code === 39) style.fg = "";
    else if (code >= 40 && code <= 47) style.bg = String(code - 40);
    else if (code === 49) style.bg = "";
    else if (code >= 90 && code <= 97) style.fg = String(code - 82);
    else if (code >= 100 && code <= 107) style.bg = String(code - 92);
    else if (code === 38 || code === 48) {
      const [color, used] = extended(codes.slice(at + 1));
      if (code === 38) style.fg = color;
      else style.bg = color;
      at += used;
    }
  }
  return lookOf(style);
}

/** A colour of 256 or of 24 bits, and how many numbers it took. */
function extended(codes: number[]): [string, number] {
  if (codes[0] === 5) return [indexed(codes[1] ?? 0), 2];
  if (codes[0] === 2) return [rgb(codes[1] ?? 0, codes[2] ?? 0, codes[3] ?? 0), 4];
  return ["", codes.length];
}

const byte = (value: number) => Math.min(255, Math.max(0, value | 0));
const rgb = (red: number, green: number, blue: number) => `rgb(${byte(red)}, ${byte(green)}, ${byte(blue)})`;

function indexed(value: number): string {
  if (value < 16) return String(Math.max(0, value));
  if (value > 255) return "";
  if (value >= 232) return rgb(8 + (value - 232) * 10, 8 + (value - 232) * 10, 8 + (value - 232) * 10);
  const level = (part: number) => (part ? 55 + part * 40 : 0);
  const cube = value - 16;
  return rgb(level(Math.floor(cube / 36)), level(Math.floor(cube / 6) % 6), level(cube % 6));
}

function lookOf(style: Style): Look {
  const key = JSON.stringify(style);
  const found = looks.get(key);
  if (found) return found;
  const classes: string[] = [];
  for (const name of ["bold", "dim", "italic", "underline", "strike", "inverse"] as const) {
    if (style[name]) classes.push(`sgr-${name}`);
  }
  const isIndex = (color: string) => /^\d+$/.test(color);
  if (isIndex(style.fg)) classes.push(`fg-${style.fg}`);
  if (isIndex(style.bg)) classes.push(`bg-${style.bg}`);
  const look: Look = {
    classes: classes.join(" "),
    color: style.fg && !isIndex(style.fg) ? style.fg : undefined,
    background: style.bg && !isIndex(style.bg) ? style.bg : undefined,
  };
  if (looks.size >= MOST_LOOKS) looks.clear();
  looks.set(key, look);
  styles.set(look, style);
  return look;
}
