// The credential of this tab. It is kept nowhere else, and forgotten with the tab.
const NAME = "tidebox.credential";

type Listener = (reason: string | null) => void;
const listeners = new Set<Listener>();

export const credential = (): string | null => sessionStorage.getItem(NAME);

export function keep(value: string): void {
  sessionStorage.setItem(NAME, value);
}

/** Sign out. `reason` is what the server said, where it was the server who wanted it. */
export function forget(reason: string | null = null): void {
  // What the tab kept of runs and terminals is somebody's, too.
  sessionStorage.clear();
  for (const listener of listeners) listener(reason);
}

export function onForgotten(listener: Listener): () => void {
  listeners.add(listener);
  return () => listeners.delete(listener);
}
