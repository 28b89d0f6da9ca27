// Which page is shown: the path below /webui/. Links stay links, for new tabs and for whoever copies them.
import type { ComponentChildren } from "preact";
import { useEffect, useState } from "preact/hooks";

const BASE = "/webui/";
const listeners = new Set<() => void>();

export function navigate(to: string, replace = false): void {
  history[replace ? "replaceState" : "pushState"](null, "", BASE + to);
  if (!replace) scrollTo(0, 0);
  for (const listener of [...listeners]) listener();
}

export function useLocation(): { path: string; search: URLSearchParams } {
  const [, turn] = useState(0);
  useEffect(() => {
    const listener = () => turn((count) => count + 1);
    listeners.add(listener);
    addEventListener("popstate", listener);
    return () => {
      listeners.delete(listener);
      removeEventListener("popstate", listener);
    };
  }, []);
  return {
    path: location.pathname.replace(BASE, "").replace(/\/$/, ""),
    search: new URLSearchParams(location.search),
  };
}

interface LinkProps {
  to: string;
  children: ComponentChildren;
  current?: boolean;
  label?: string;
  class?: string;
}

export function Link({ to, children, current, label, class: kind }: LinkProps) {
  const follow = (event: MouseEvent) => {
    if (event.button || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
    event.preventDefault();
    navigate(to);
  };
  return (
    <a href={BASE + to} onClick={follow} aria-current={current ? "page" : undefined} aria-label={label} class={kind}>
      {children}
    </a>
  );
}

export const runPath = (id: string) => `sandbox/runs/${encodeURIComponent(id)}`;
export const sandboxPath = (id: string) => `sandboxes/${encodeURIComponent(id)}`;
export const sessionPath = (id: string) => `sessions/${encodeURIComponent(id)}`;
