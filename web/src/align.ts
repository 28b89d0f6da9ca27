// Two texts side by side, equal lines beside each other.
export interface Pair {
  left: string | null;
  right: string | null;
}

// What a table of so many lines takes is a few megabytes; beyond that lines are compared by their place.
const MOST_CELLS = 4_000_000;

export function alignLines(one: string, other: string): Pair[] {
  const left = one.replace(/\n$/, "").split("\n");
  const right = other.replace(/\n$/, "").split("\n");
  let same = 0;
  while (same < left.length && same < right.length && left[same] === right[same]) same += 1;
  let end = 0;
  while (end < left.length - same && end < right.length - same && left.at(-1 - end) === right.at(-1 - end)) end += 1;
  const middle = aligned(left.slice(same, left.length - end), right.slice(same, right.length - end));
  const equal = (line: string) => ({ left: line, right: line });
  return [...left.slice(0, same).map(equal), ...middle, ...left.slice(left.length - end).map(equal)];
}

function aligned(left: string[], right: string[]): Pair[] {
  const pairs: Pair[] = [];
  if (left.length * right.length > MOST_CELLS) {
    for (let at = 0; at < Math.max(left.length, right.length); at += 1) {
      pairs.push({ left: left[at] ?? null, right: right[at] ?? null });
    }
    return pairs;
  }
  // How many lines the rests have in common, from each place of both on.
  const width = right.length + 1;
  const common = new Uint16Array((left.length + 1) * width);
  for (let row = left.length - 1; row >= 0; row -= 1) {
    for (let column = right.length - 1; column >= 0; column -= 1) {
      const here = row * width + column;
      common[here] =
        left[row] === right[column]
          ? common[here + width + 1]! + 1
          : Math.max(common[here + width]!, common[here + 1]!);
    }
  }
  let row = 0;
  let column = 0;
  while (row < left.length || column < right.length) {
    const here = row * width + column;
    if (row < left.length && column < right.length && left[row] === right[column]) {
      pairs.push({ left: left[row]!, right: right[column]! });
      row += 1;
      column += 1;
    } else if (column >= right.length || (row < left.length && common[here + width]! >= common[here + 1]!)) {
      pairs.push({ left: left[row]!, right: null });
      row += 1;
    } else {
      pairs.push({ left: null, right: right[column]! });
      column += 1;
    }
  }
  return pairs;
}
