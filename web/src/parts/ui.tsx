// Small things that all pages are made of.
import type { ComponentChildren } from "preact";
import { useEffect, useId, useRef, useState } from "preact/hooks";
import { ApiError } from "../api";
import { bytes, visible } from "../text";

/** Give the page its title; the heading is its own. */
export function useTitle(title: string): void {
  useEffect(() => {
    document.title = `${title} · Tidebox`;
  }, [title]);
}

export function Heading({ children, title }: { children: ComponentChildren; title: string }) {
  useTitle(title);
  return <h1>{children}</h1>;
}

export function Problem({ error }: { error: unknown }) {
  if (!error) return null;
  return (
    <p role="alert" class="alert">
      {explained(error)}
    </p>
  );
}

export function explained(error: unknown): string {
  if (error instanceof ApiError) {
    const wait = error.retryAfter ? ` Try again in ${error.retryAfter} s.` : "";
    return `${error.message}${wait}${error.requestId ? ` (${error.code}, request ${error.requestId})` : ""}`;
  }
  return error instanceof Error ? error.message : String(error);
}

/** A name that a stranger gave: as text, all of it visible, and with its own direction. */
export const Name = ({ children }: { children: string }) => <bdi class="name">{visible(children)}</bdi>;

interface FieldProps {
  label: string;
  hint?: string;
  children: (id: string, described: string | undefined) => ComponentChildren;
}

export function Field({ label, hint, children }: FieldProps) {
  const id = useId();
  const hintId = hint ? `${id}-hint` : undefined;
  return (
    <div class="field">
      <label for={id}>{label}</label>
      {children(id, hintId)}
      {hint && (
        <small id={hintId} class="hint">
          {hint}
        </small>
      )}
    </div>
  );
}

interface TextProps {
  label: string;
  value: string;
  onInput: (value: string) => void;
  hint?: string;
  type?: string;
  list?: string;
  placeholder?: string;
  rows?: number;
}

export function Text({ label, value, onInput, hint, type = "text", list, placeholder, rows }: TextProps) {
  const input = (event: Event) => onInput((event.target as HTMLInputElement | HTMLTextAreaElement).value);
  return (
    <Field label={label} hint={hint}>
      {(id, described) =>
        rows ? (
          <textarea id={id} rows={rows} value={value} onInput={input} aria-describedby={described} spellcheck={false} />
        ) : (
          <input
            id={id}
            type={type}
            value={value}
            list={list}
            placeholder={placeholder}
            onInput={input}
            aria-describedby={described}
            autocomplete="off"
            spellcheck={false}
            min={type === "number" ? 0 : undefined}
            step={type === "number" ? "any" : undefined}
          />
        )
      }
    </Field>
  );
}

interface ChoiceProps {
  label: string;
  value: string;
  options: (string | [string, string])[];
  onChange: (value: string) => void;
  hint?: string;
}

export function Choice({ label, value, options, onChange, hint }: ChoiceProps) {
  return (
    <Field label={label} hint={hint}>
      {(id, described) => (
        <select
          id={id}
          value={value}
          aria-describedby={described}
          onChange={(event) => onChange((event.target as HTMLSelectElement).value)}
        >
          {options.map((option) => {
            const [name, text] = typeof option === "string" ? [option, option] : option;
            return (
              <option key={name} value={name} selected={name === value}>
                {text}
              </option>
            );
          })}
        </select>
      )}
    </Field>
  );
}

/** A value drawn against its limit. */
export function Meter({ label, value, limit, show }: { label: string; value: number; limit: number; show: (value: number) => string }) {
  const share = limit ? Math.min(1, value / limit) : 0;
  const id = useId();
  return (
    <div class="meter">
      <span id={id}>{label}</span>
      <meter aria-labelledby={id} min={0} max={1} low={0.8} high={0.95} optimum={0} value={share}>
        {show(value)}
      </meter>
      <span class="figures">
        {show(value)} of {show(limit)}
      </span>
    </div>
  );
}

/** A line to be copied, such as the command that makes a first run. */
export function Snippet({ children, label }: { children: string; label: string }) {
  return (
    <pre class="snippet" role="group" tabIndex={0} aria-label={label}>
      <code>{children}</code>
    </pre>
  );
}

export const Size = ({ children }: { children: number }) => <span title={`${children} bytes`}>{bytes(children)}</span>;

/** A result that is asked for again whenever `key` changes; `reload` asks at once. */
export function useAsked<T>(ask: (signal: AbortSignal) => Promise<T>, key: string) {
  const [state, setState] = useState<{ value: T | null; error: unknown; key: string }>({ value: null, error: null, key });
  const [turn, setTurn] = useState(0);
  const latest = useRef(ask);
  latest.current = ask;
  useEffect(() => {
    const abort = new AbortController();
    latest.current(abort.signal).then(
      (value) => setState({ value, error: null, key }),
      (error) => {
        if (!abort.signal.aborted) setState((before) => ({ value: before.key === key ? before.value : null, error, key }));
      },
    );
    return () => abort.abort();
  }, [key, turn]);
  return {
    value: state.key === key ? state.value : null,
    stale: state.value,
    error: state.key === key ? state.error : null,
    reload: () => setTurn((count) => count + 1),
  };
}

/** Do something every so often, while somebody looks at the page. */
export function useEvery(milliseconds: number, act: () => void, active = true): void {
  const latest = useRef(act);
  latest.current = act;
  useEffect(() => {
    if (!active) return;
    const timer = setInterval(() => {
      if (!document.hidden) latest.current();
    }, milliseconds);
    return () => clearInterval(timer);
  }, [milliseconds, active]);
}

/** Give a file to the browser's downloads, whatever it is: as bytes that no browser opens. */
export function saveAs(content: Blob, name: string): void {
  const url = URL.createObjectURL(new Blob([content], { type: "application/octet-stream" }));
  const link = document.createElement("a");
  link.href = url;
  link.download = name.split("/").pop() || "file";
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(url), 60_000);
}
