// A terminal of a sandbox. Loaded when a page has one.
import { FitAddon } from "@xterm/addon-fit";
import { Terminal } from "@xterm/xterm";
import "@xterm/xterm/css/xterm.css";
import { openSocket } from "./api";
import { copyText } from "./copies";
import { nonce } from "./nonce";

// The terminal makes style elements and sets style attributes: the policy asks the former for its nonce, and lets the
// latter be only where they are set as properties.
const createElement = document.createElement.bind(document) as (name: string, options?: ElementCreationOptions) => HTMLElement;
document.createElement = ((name: string, options?: ElementCreationOptions) => {
  const element = createElement(name, options);
  if (name.toLowerCase() === "style") element.nonce = nonce();
  return element;
}) as typeof document.createElement;
HTMLSpanElement.prototype.setAttribute = function (name: string, value: string) {
  if (name === "style") this.style.cssText = value;
  else Element.prototype.setAttribute.call(this, name, value);
};

interface Frame {
  type: string;
  process_id?: string;
  offset?: number;
  data?: string;
  encoding?: "utf8" | "base64";
  exit_code?: number;
  error?: { code: string; message: string };
}

// What a program printed before it was found again comes without such a pause.
const OLD_PAUSE_MS = 500;

export interface TerminalOptions {
  parent: HTMLElement;
  token: () => Promise<string>;
  /** A terminal that was opened before; without one a shell is started. */
  processId: string | null;
  onProcess: (id: string) => void;
  /** It is over: the shell has ended, or is not there any more. */
  onEnd: (why: string) => void;
  onNote: (text: string | null) => void;
  /** Somebody wants to leave it with the keyboard. */
  onLeave: () => void;
}

export class ShellTerminal {
  private readonly terminal = new Terminal({
    screenReaderMode: true,
    scrollback: 5000,
    fontFamily: '"DejaVu Sans Mono", ui-monospace, Menlo, Consolas, monospace',
    fontSize: 14,
    theme: { background: "#0b1114", foreground: "#e4ecf0", cursor: "#5cc3e0" },
  });
  private readonly fit = new FitAddon();
  private readonly resized: ResizeObserver;
  private socket: WebSocket | null = null;
  private processId: string | null;
  private offset = 0;
  private over = false;
  private tries = 0;
  private timer = 0;
  /** Until when output counts as printed before this page came: while it comes without a pause, and nobody types. */
  private oldUntil = 0;

  constructor(private readonly options: TerminalOptions) {
    this.processId = options.processId;
    this.terminal.loadAddon(this.fit);
    this.terminal.open(options.parent);
    this.terminal.attachCustomKeyEventHandler((event) => this.key(event));
    this.ignoreWhatIsOld();
    this.terminal.onData((data) => {
      this.oldUntil = 0;
      this.send({ type: "stdin", data });
    });
    this.terminal.onBinary((data) => this.send({ type: "stdin", data: btoa(data), encoding: "base64" }));
    this.terminal.onResize(({ rows, cols }) => this.send({ type: "resize", rows, cols }));
    this.resized = new ResizeObserver(() => this.refit());
    this.resized.observe(options.parent);
    this.refit();
    void this.connect();
  }

  focus(): void {
    this.terminal.focus();
  }

  /** Leave the terminal; what runs in it goes on. */
  close(): void {
    this.over = true;
    clearTimeout(this.timer);
    this.resized.disconnect();
    this.socket?.close();
    this.terminal.dispose();
  }

  /** End what runs in it. */
  end(): void {
    this.send({ type: "signal", signal: "HUP" });
    this.send({ type: "signal", signal: "KILL" });
  }

  private refit(): void {
    // One that is not in sight has no size.
    if (this.options.parent.clientWidth) this.fit.fit();
  }

  private key(event: KeyboardEvent): boolean {
    if (event.type !== "keydown" || !event.ctrlKey || !event.shiftKey) return true;
    if (event.code === "KeyC") {
      event.preventDefault();
      if (this.terminal.hasSelection()) void copyText(this.terminal.getSelection()).then(() => this.terminal.focus());
      return false;
    }
    if (event.code === "KeyX") {
      event.preventDefault();
      this.options.onLeave();
      return false;
    }
    return event.code !== "KeyV";
  }

  private send(frame: object): void {
    if (this.socket?.readyState === WebSocket.OPEN) this.socket.send(JSON.stringify(frame));
  }

  private async connect(): Promise<void> {
    let token: string;
    try {
      token = await this.options.token();
    } catch (error) {
      if (!this.over) this.options.onEnd(error instanceof Error ? error.message : String(error));
      return;
    }
    if (this.over) return;
    const socket = openSocket("/v1/shell/ws");
    this.socket = socket;
    socket.onopen = () => this.send({ type: "auth", token });
    socket.onmessage = (message) => this.take(JSON.parse(message.data as string) as Frame);
    socket.onclose = () => {
      if (this.over || this.socket !== socket) return;
      this.options.onNote("The connection to the terminal was lost. It is being made again; what runs in it goes on.");
      this.timer = window.setTimeout(() => void this.connect(), Math.min(10_000, 500 * 2 ** this.tries));
      this.tries += 1;
    };
  }

  private start(): void {
    const { rows, cols } = this.terminal;
    if (this.processId) this.send({ type: "start", process_id: this.processId, offset: this.offset });
    else this.send({ type: "start", tty: { rows, cols }, env: { TERM: "xterm-256color" }, on_disconnect: "detach" });
  }

  private take(frame: Frame): void {
    switch (frame.type) {
      case "auth_ok":
        return this.start();
      case "ready":
        this.tries = 0;
        this.options.onNote(null);
        if (this.processId && this.offset === 0) this.foundAgain();
        if (frame.process_id) this.processId = frame.process_id;
        if (this.processId) this.options.onProcess(this.processId);
        return this.send({ type: "resize", rows: this.terminal.rows, cols: this.terminal.cols });
      case "stdout":
      case "stderr":
        if (frame.offset !== undefined) this.offset = frame.offset;
        if (performance.now() < this.oldUntil) this.oldUntil = performance.now() + OLD_PAUSE_MS;
        return this.write(frame);
      case "exit":
        return this.ended(`The shell has ended with exit code ${frame.exit_code}.`);
      case "error":
        return this.ended(frame.error?.message ?? "The terminal cannot be used.");
    }
  }

  /** A program that was there before this page: all it printed comes first, and then it draws its screen anew. */
  private foundAgain(): void {
    this.oldUntil = Number.POSITIVE_INFINITY;
    const { rows, cols } = this.terminal;
    // Another size for certain: only then is a program told of one.
    this.send({ type: "resize", rows, cols: Math.max(1, cols - 1) });
  }

  /**
   * What a program asked a terminal a while ago is not answered now: nobody waits for it any more, and the answer would
   * be typed into whatever runs there. Nor do margins count that it set for another size.
   */
  private ignoreWhatIsOld(): void {
    const isOld = () => performance.now() < this.oldUntil;
    const { parser } = this.terminal;
    for (const final of ["c", "n", "t", "r"]) parser.registerCsiHandler({ final }, isOld);
    for (const prefix of ["?", ">", "="]) {
      for (const final of ["c", "n", "u", "q"]) parser.registerCsiHandler({ prefix, final }, isOld);
    }
    parser.registerCsiHandler({ intermediates: "$", final: "p" }, isOld);
    parser.registerCsiHandler({ prefix: "?", intermediates: "$", final: "p" }, isOld);
    for (const intermediates of ["$", "+"]) parser.registerDcsHandler({ intermediates, final: "q" }, isOld);
    for (const code of [4, 10, 11, 12]) parser.registerOscHandler(code, (data) => data.includes("?") && isOld());
  }

  private ended(why: string): void {
    if (this.over) return;
    this.over = true;
    this.socket?.close();
    this.options.onEnd(why);
  }

  private write(frame: Frame): void {
    const data = frame.data ?? "";
    const written = frame.encoding === "base64" ? Uint8Array.from(atob(data), (char) => char.charCodeAt(0)) : data;
    this.terminal.write(written);
  }
}
