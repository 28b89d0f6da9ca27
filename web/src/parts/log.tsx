// The log of a run: live, with search, follow, wrap and download.
import { useEffect, useRef, useState } from "preact/hooks";
import { request, SERVICE } from "../api";
import { Lines } from "../log/lines";
import { Search } from "../log/search";
import { LogStream } from "../log/stream";
import { LogView } from "../log/view";
import type { Phase } from "../model";
import { count } from "../text";
import { explained, saveAs } from "./ui";

interface Props {
  runId: string;
  /** Whether the program takes input. */
  interactive: boolean;
  onPhase: (phase: Phase) => void;
  onEnd: () => void;
}

export function Log({ runId, interactive, onPhase, onEnd }: Props) {
  const element = useRef<HTMLDivElement>(null);
  const view = useRef<LogView | null>(null);
  const lines = useRef(new Lines());
  const stream = useRef<LogStream | null>(null);
  const search = useRef<Search | null>(null);
  const [note, setNote] = useState<string | null>(null);
  const [cut, setCut] = useState<string | null>(null);
  const [progress, setProgress] = useState<string | null>(null);
  const [size, setSize] = useState(0);
  const [follow, setFollow] = useState(true);
  const [wrap, setWrap] = useState(false);
  const [wanted, setWanted] = useState("");
  const [at, setAt] = useState(0);
  const [, turn] = useState(0);
  const [ended, setEnded] = useState(false);
  const [inputNote, setInputNote] = useState<string | null>(null);
  const events = useRef({ onPhase, onEnd });
  events.current = { onPhase, onEnd };

  useEffect(() => {
    const shown = new LogView(element.current!, lines.current, setFollow);
    view.current = shown;
    let asked = 0;
    const changed = () => {
      shown.changed();
      search.current?.go();
      // How much there is is told a few times in a second, however fast it comes.
      if (!asked) {
        asked = window.setTimeout(() => {
          asked = 0;
          setSize(lines.current.size);
          if (lines.current.full) setCut("The rest of the log is too long for a page: download it.");
        }, 100);
      }
    };
    stream.current = new LogStream(runId, {
      output: (text, err) => {
        lines.current.append(text, err);
        changed();
      },
      phase: (phase) => {
        if (phase === "running") setProgress(null);
        events.current.onPhase(phase);
      },
      progress: setProgress,
      gap: (missing) => {
        const text = `A gap: ${count(missing, "entry", "entries")} of the log ${missing === 1 ? "is" : "are"} missing here`;
        lines.current.gap(text);
        setCut(`${text}: the server does not have them any more.`);
        changed();
      },
      note: setNote,
      truncated: (reason) => {
        if (reason === "log_cap") setCut("The log is full: what the program wrote after this was dropped.");
      },
      inputClosed: (reason) => setInputNote(`The input was closed: ${reason}.`),
      refused: setInputNote,
      end: () => {
        changed();
        setEnded(true);
        setProgress(null);
        events.current.onEnd();
      },
    });
    return () => {
      clearTimeout(asked);
      stream.current?.close();
      search.current?.close();
      shown.close();
    };
  }, [runId]);

  const find = (text: string) => {
    setWanted(text);
    search.current?.close();
    setAt(0);
    if (!text) {
      search.current = null;
      view.current?.highlight(null, -1);
      return;
    }
    let first = true;
    search.current = new Search(text, lines.current, () => {
      turn((before) => before + 1);
      if (first && search.current?.matches.length) {
        first = false;
        show(0);
      } else view.current?.changed();
    });
    view.current?.highlight(search.current.pattern, -1);
  };
  const show = (index: number) => {
    const found = search.current;
    if (!found?.matches.length) return;
    const next = (index + found.matches.length) % found.matches.length;
    setAt(next);
    changeFollow(false);
    view.current?.highlight(found.pattern, found.matches[next]!);
    view.current?.reveal(found.matches[next]!);
  };
  const changeFollow = (value: boolean) => {
    setFollow(value);
    if (view.current) view.current.follow = value;
  };
  const download = async () => {
    try {
      const response = await request("GET", `${SERVICE}/runs/${encodeURIComponent(runId)}/logs`);
      saveAs(await response.blob(), `${runId}.log`);
    } catch (error) {
      setCut(explained(error));
    }
  };

  const found = search.current;
  return (
    <section class="log-part" aria-label="Output">
      <div class="toolbar">
        <h2>Output</h2>
        <span class="quiet">{count(size, "line")}</span>
        <label class="search">
          <span class="unseen">Search the output</span>
          <input
            type="search"
            placeholder="Search"
            value={wanted}
            onInput={(event) => find((event.target as HTMLInputElement).value)}
            onKeyDown={(event) => {
              if (event.key === "Enter") {
                event.preventDefault();
                show(event.shiftKey ? at - 1 : at + 1);
              }
            }}
          />
        </label>
        {wanted && (
          <>
            <span class="quiet" aria-live="polite">
              {found?.matches.length
                ? `${at + 1} of ${count(found.matches.length, "line")}${found.complete ? "" : "…"}`
                : found?.complete
                  ? "not found"
                  : "…"}
            </span>
            <button class="small" aria-label="Previous match" onClick={() => show(at - 1)}>
              ↑
            </button>
            <button class="small" aria-label="Next match" onClick={() => show(at + 1)}>
              ↓
            </button>
          </>
        )}
        <span class="space" />
        <label class="toggle">
          <input
            type="checkbox"
            checked={follow}
            onChange={(event) => changeFollow((event.target as HTMLInputElement).checked)}
          />{" "}
          Follow
        </label>
        <label class="toggle">
          <input
            type="checkbox"
            checked={wrap}
            onChange={(event) => {
              const value = (event.target as HTMLInputElement).checked;
              setWrap(value);
              view.current?.setWrap(value);
            }}
          />{" "}
          Wrap
        </label>
        <button class="small" onClick={() => void download()}>
          Download log
        </button>
      </div>
      {progress && <p class="note">{progress}</p>}
      {note && (
        <p class="note" aria-live="polite">
          {note}
        </p>
      )}
      <div ref={element} role="log" aria-label="Log" tabIndex={0} class="log" aria-live="off" />
      {cut && <p class="note">{cut}</p>}
      {ended && size === 0 && <p class="quiet">The program wrote nothing.</p>}
      {interactive && !ended && <Input stream={stream} note={inputNote} />}
    </section>
  );
}

function Input({ stream, note }: { stream: { current: LogStream | null }; note: string | null }) {
  const [text, setText] = useState("");
  const [problem, setProblem] = useState<string | null>(null);
  const send = (event: Event) => {
    event.preventDefault();
    if (stream.current?.send(`${text}\n`)) {
      setText("");
      setProblem(null);
    } else setProblem("There is no connection to the program, and much waits for one already.");
  };
  return (
    <form class="input" onSubmit={send}>
      <label>
        <span class="unseen">Input</span>
        <input
          aria-label="Input"
          placeholder="Input for the program; Enter sends a line"
          value={text}
          autocomplete="off"
          spellcheck={false}
          onInput={(event) => setText((event.target as HTMLInputElement).value)}
        />
      </label>
      <button type="submit">Send</button>
      <button type="button" onClick={() => stream.current?.endInput()}>
        End of input
      </button>
      {(problem ?? note) && <p class="note">{problem ?? note}</p>}
    </form>
  );
}
