// The specs of runs that this tab has started. The server keeps no code, so nobody else has them.
import type { RunSpec } from "./model";

const PREFIX = "tidebox.spec.";
const ORDER = "tidebox.specs";
const MOST = 50;
const MOST_CHARS = 3_000_000;

const known = (): string[] => JSON.parse(sessionStorage.getItem(ORDER) ?? "[]");

export function keepSpec(runId: string, spec: RunSpec): void {
  const order = [runId, ...known().filter((id) => id !== runId)];
  const text = JSON.stringify(spec);
  let room = MOST_CHARS - text.length;
  const kept = order.filter((id, index) => {
    if (index === 0) return true;
    room -= sessionStorage.getItem(PREFIX + id)?.length ?? 0;
    return index < MOST && room >= 0;
  });
  for (const id of order) if (!kept.includes(id)) sessionStorage.removeItem(PREFIX + id);
  try {
    sessionStorage.setItem(PREFIX + runId, text);
    sessionStorage.setItem(ORDER, JSON.stringify(kept));
  } catch {
    // More than a tab may keep: then it is as if another tab had started the run.
    sessionStorage.removeItem(PREFIX + runId);
  }
}

export function specOf(runId: string): RunSpec | null {
  const text = sessionStorage.getItem(PREFIX + runId);
  return text === null ? null : (JSON.parse(text) as RunSpec);
}

const DRAFT = "tidebox.draft";

/** Let the Run page begin with a spec. */
export const keepDraft = (spec: RunSpec) => sessionStorage.setItem(DRAFT, JSON.stringify(spec));

export function takeDraft(): RunSpec | null {
  const text = sessionStorage.getItem(DRAFT);
  sessionStorage.removeItem(DRAFT);
  return text === null ? null : (JSON.parse(text) as RunSpec);
}
