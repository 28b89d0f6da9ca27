// Numbers, times and names for people.
const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];

export function bytes(count: number): string {
  let unit = 0;
  let value = count;
  while (value >= 1024 && unit < UNITS.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${unit && value < 100 ? value.toFixed(1).replace(/\.0$/, "") : Math.round(value)} ${UNITS[unit]}`;
}

export function seconds(value: number): string {
  if (value === 0) return "0 s";
  if (value < 0.001) return `${Math.round(value * 1e6)} µs`;
  if (value < 1) return `${Math.round(value * 1000)} ms`;
  if (value < 60) return `${Number(value.toFixed(value < 10 ? 2 : 1))} s`;
  const minutes = Math.floor(value / 60);
  if (minutes < 60) return `${minutes} min ${Math.round(value % 60)} s`;
  return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

export function time(iso: string | null): string {
  if (!iso) return "–";
  const date = new Date(iso);
  const today = date.toDateString() === new Date().toDateString();
  return today ? date.toLocaleTimeString() : date.toLocaleString();
}

export function until(iso: string): string {
  const left = (Date.parse(iso) - Date.now()) / 1000;
  return left <= 0 ? "over" : `${seconds(Math.round(left))} left`;
}

export const count = (value: number, one: string, many = `${one}s`) =>
  `${value.toLocaleString("en")} ${value === 1 ? one : many}`;

// Characters that show nothing, or change the order of others, are spelled: a name must not look like another one.
const HIDDEN = /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]/g;

/** A name that strangers gave, so that everything in it can be seen. */
export const visible = (name: string) =>
  name.replace(HIDDEN, (char) => `\\u{${char.charCodeAt(0).toString(16).padStart(2, "0")}}`);
