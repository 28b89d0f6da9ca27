// The terminals of a sandbox, several at once. A reload finds them again: what runs in them goes on.
import { useEffect, useRef, useState } from "preact/hooks";
import { randomId } from "../api";
import type { Sandbox } from "../sandbox";
import type { ShellTerminal } from "../terminal";

interface Tab {
  key: string;
  number: number;
  processId: string | null;
}

const MOST = 8;

export function Terminals({ sandbox, onChange }: { sandbox: Sandbox; onChange: () => void }) {
  const name = `tidebox.terminals.${sandbox.binding.sandbox_id}`;
  const [tabs, setTabs] = useState<Tab[]>(() => {
    const kept = JSON.parse(sessionStorage.getItem(name) ?? "[]") as Tab[];
    return kept.length ? kept : [{ key: randomId(), number: 1, processId: null }];
  });
  const [active, setActive] = useState(tabs[0]?.key ?? "");
  const add = useRef<HTMLButtonElement>(null);

  useEffect(() => sessionStorage.setItem(name, JSON.stringify(tabs.filter((tab) => tab.processId))), [tabs]);

  const open = () => {
    const tab = { key: randomId(), number: Math.max(0, ...tabs.map((each) => each.number)) + 1, processId: null };
    setTabs([...tabs, tab]);
    setActive(tab.key);
  };
  const close = (key: string) => {
    const left = tabs.filter((tab) => tab.key !== key);
    onChange();
    setTabs(left);
    if (active === key) setActive(left.at(-1)?.key ?? "");
  };

  return (
    <section aria-label="Shells">
      <div class="tabs">
        <h2>Shells</h2>
        <div role="tablist" aria-label="Open shells" class="tabs">
          {tabs.map((tab) => (
            <button
              key={tab.key}
              id={`tab-${tab.key}`}
              role="tab"
              aria-selected={tab.key === active}
              aria-controls={`panel-${tab.key}`}
              class="small"
              onClick={() => setActive(tab.key)}
            >
              Shell {tab.number}
            </button>
          ))}
        </div>
        <button ref={add} class="small" disabled={tabs.length >= MOST} onClick={open}>
          New shell
        </button>
        <span class="quiet hint">
          <kbd>Ctrl</kbd>+<kbd>Shift</kbd>+<kbd>C</kbd> copies, <kbd>Ctrl</kbd>+<kbd>Shift</kbd>+<kbd>V</kbd> pastes,{" "}
          <kbd>Ctrl</kbd>+<kbd>Shift</kbd>+<kbd>X</kbd> leaves the terminal
        </span>
      </div>
      {tabs.map((tab) => (
        <OneTerminal
          key={tab.key}
          tab={tab}
          shown={tab.key === active}
          sandbox={sandbox}
          onProcess={(processId) => {
            if (processId !== tab.processId) onChange();
            setTabs((before) => before.map((each) => (each.key === tab.key ? { ...each, processId } : each)));
          }}
          onClose={() => close(tab.key)}
          onLeave={() => add.current?.focus()}
        />
      ))}
    </section>
  );
}

interface Props {
  tab: Tab;
  shown: boolean;
  sandbox: Sandbox;
  onProcess: (id: string) => void;
  onClose: () => void;
  onLeave: () => void;
}

function OneTerminal({ tab, shown, sandbox, onProcess, onClose, onLeave }: Props) {
  const parent = useRef<HTMLDivElement>(null);
  const terminal = useRef<ShellTerminal | null>(null);
  const [note, setNote] = useState<string | null>(null);
  const [over, setOver] = useState(false);
  const [turn, setTurn] = useState(0);
  const known = useRef(tab.processId);

  useEffect(() => {
    let gone = false;
    let ready = false;
    setOver(false);
    void import("../terminal").then(
      ({ ShellTerminal }) => {
        if (gone || !parent.current) return;
        terminal.current = new ShellTerminal({
          parent: parent.current,
          token: () => sandbox.token(),
          processId: known.current,
          onProcess: (id) => {
            ready = true;
            known.current = id;
            onProcess(id);
          },
          onEnd: (why) => {
            const found = known.current;
            known.current = null;
            // One of before the reload that is not there any more: a new one takes its place.
            if (found && !ready) return setTurn((count) => count + 1);
            setNote(why);
            setOver(true);
          },
          onNote: setNote,
          onLeave,
        });
        if (shown) terminal.current.focus();
      },
      () => setNote("The terminal could not be loaded. Reload the page."),
    );
    return () => {
      gone = true;
      terminal.current?.close();
      terminal.current = null;
      parent.current?.replaceChildren();
    };
  }, [turn]);
  useEffect(() => {
    if (shown) terminal.current?.focus();
  }, [shown]);

  return (
    <div role="tabpanel" id={`panel-${tab.key}`} aria-labelledby={`tab-${tab.key}`} hidden={!shown}>
      {note && (
        <p class="note" aria-live="polite">
          {note}{" "}
          {over && (
            <button class="small" onClick={() => setTurn((count) => count + 1)}>
              Start another
            </button>
          )}
        </p>
      )}
      <div ref={parent} class="shell" role="region" aria-label="Terminal" onClick={() => terminal.current?.focus()} />
      <p class="toolbar">
        <button
          class="small"
          onClick={() => {
            terminal.current?.end();
            onClose();
          }}
        >
          Close shell
        </button>
      </p>
    </div>
  );
}
