// The log stream of a run. A connection that is lost is made again, and the log goes on with the entry that follows.
import { ApiError, get, openSocket, request, SERVICE } from "../api";
import { linesOf } from "./lines-of";
import type { Phase, Run } from "../model";

interface Frame {
  type: string;
  seq: number;
  event?: string;
  encoding?: "utf8" | "base64";
  data?: unknown;
  reason?: string;
}

export interface Listener {
  output(text: string, err: boolean): void;
  phase(phase: Phase): void;
  progress(message: string): void;
  /** Entries are missing here, and nobody has them any more. */
  gap(count: number): void;
  /** What is to be told of the connection itself; null when there is nothing. */
  note(text: string | null): void;
  truncated(reason: string): void;
  inputClosed(reason: string): void;
  refused(message: string): void;
  end(): void;
}

// A server says something every ten seconds; this long without a word the connection is dead.
const SILENCE_MS = 35_000;
const MOST_WAITING = 100;
const LONGEST_PAUSE_MS = 30_000;

const NO_INPUT = "This server signs no URLs of log streams (SANDBOX_WS_SIGNED_URLS), so a page cannot send input.";

export class LogStream {
  private socket: WebSocket | null = null;
  /** Ends the answer that is read where there is no socket. */
  private reading: AbortController | null = null;
  private next = 1;
  private tries = 0;
  private timer = 0;
  private watchdog = 0;
  private behind = -1;
  private closed = false;
  private readonly waiting: string[] = [];
  private readonly decoders = { stdout: new TextDecoder(), stderr: new TextDecoder() };

  constructor(
    private readonly runId: string,
    private readonly listener: Listener,
  ) {
    void this.connect();
  }

  close(): void {
    this.closed = true;
    this.drop();
  }

  send(data: string): boolean {
    return this.post({ type: "stdin", data });
  }

  endInput(): boolean {
    return this.post({ type: "stdin_close" });
  }

  /** Send input, or keep it until there is a connection; false where too much is kept already. */
  private post(message: object): boolean {
    if (this.closed || this.waiting.length >= MOST_WAITING) return false;
    if (this.reading) {
      this.listener.refused(NO_INPUT);
      return true;
    }
    this.waiting.push(JSON.stringify(message));
    this.flush();
    return true;
  }

  private flush(): void {
    if (this.socket?.readyState !== WebSocket.OPEN) return;
    for (const message of this.waiting.splice(0)) this.socket.send(message);
  }

  private drop(): void {
    clearTimeout(this.timer);
    clearTimeout(this.watchdog);
    const socket = this.socket;
    this.socket = null;
    socket?.close();
    this.reading?.abort();
    this.reading = null;
  }

  private async connect(): Promise<void> {
    try {
      // The URL of a stream is signed, and good for a minute: each connection gets its own.
      const run = await get<Run>(`${SERVICE}/runs/${encodeURIComponent(this.runId)}`);
      if (this.closed || !run.log_stream_url) return;
      const url = new URL(run.log_stream_url);
      url.searchParams.set("from_seq", String(this.next));
      if (url.searchParams.has("token")) this.open(url.pathname + url.search);
      else await this.read();
    } catch (error) {
      if (error instanceof ApiError && error.status >= 400 && error.status < 500 && error.status !== 429) {
        this.listener.note(error.message);
      } else this.again();
    }
  }

  private open(path: string): void {
    const socket = openSocket(path);
    this.socket = socket;
    this.watch();
    socket.onopen = () => {
      if (this.tries) this.listener.note(null);
      this.flush();
    };
    socket.onmessage = (message) => {
      if (this.socket !== socket) return;
      this.watch();
      this.take(JSON.parse(message.data as string) as Frame);
    };
    socket.onclose = () => {
      if (this.socket === socket) this.again();
    };
  }

  /** Without a signed URL: the same frames as lines of an answer, which is asked for with a header as all others are. */
  private async read(): Promise<void> {
    const reading = new AbortController();
    this.reading = reading;
    this.watch();
    const path = `${SERVICE}/runs/${encodeURIComponent(this.runId)}/logs?follow=true&format=jsonl&from_seq=${this.next}`;
    try {
      const response = await request("GET", path, { signal: reading.signal });
      if (this.tries) this.listener.note(null);
      for await (const line of linesOf(response.body!)) {
        if (this.reading !== reading) return;
        this.watch();
        this.take(JSON.parse(line) as Frame);
      }
    } catch (error) {
      if (this.reading !== reading) return;
      if (error instanceof ApiError) throw error;
    }
    // Its end comes with the end of the run alone, and that was seen.
    if (this.reading === reading) this.again();
  }

  private watch(): void {
    clearTimeout(this.watchdog);
    this.watchdog = window.setTimeout(() => this.again(), SILENCE_MS);
  }

  private again(): void {
    this.drop();
    if (this.closed) return;
    const pause = Math.min(LONGEST_PAUSE_MS, 500 * 2 ** this.tries) * (0.9 + Math.random() * 0.2);
    this.tries += 1;
    this.listener.note("The connection was lost. It is being made again, and the log goes on where it was.");
    this.timer = window.setTimeout(() => void this.connect(), pause);
  }

  private take(frame: Frame): void {
    if (frame.type === "event" && frame.event === "resume") return this.resumed(frame);
    if (frame.type === "event" && frame.event === "error") {
      return this.listener.refused((frame.data as { message: string }).message);
    }
    if (frame.seq < this.next) return;
    this.tries = 0;
    if (this.behind >= 0 && frame.seq > this.behind) {
      this.behind = -1;
      this.listener.note(null);
    }
    this.next = frame.seq + 1;
    if (frame.type === "stdout" || frame.type === "stderr") {
      this.listener.output(this.decoded(frame), frame.type === "stderr");
    } else if (frame.type === "truncated") this.listener.truncated(frame.reason ?? "");
    else if (frame.type === "event") this.happened(frame);
  }

  private happened(frame: Frame): void {
    const data = (frame.data ?? {}) as { phase?: Phase; message?: string; reason?: string };
    if (frame.event === "phase" && data.phase) this.listener.phase(data.phase);
    else if (frame.event === "start") this.listener.phase("running");
    else if (frame.event === "progress") this.listener.progress(data.message ?? "");
    else if (frame.event === "stdin_closed") this.listener.inputClosed(data.reason ?? "");
    else if (frame.event === "end") {
      this.close();
      this.listener.note(null);
      this.listener.end();
    }
  }

  /** Entries are missing. They are on the server's disk, so they are asked for, unless that was done already. */
  private resumed(frame: Frame): void {
    const data = frame.data as { delivered_from_seq: number; lost_count: number };
    if (!data.lost_count) {
      this.next = data.delivered_from_seq;
      return;
    }
    if (this.behind >= 0 && this.next <= this.behind && this.tries === 0 && this.asked === this.next) {
      this.listener.note(null);
      this.listener.gap(data.lost_count);
      this.next = data.delivered_from_seq;
      this.behind = -1;
      return;
    }
    this.behind = data.delivered_from_seq;
    this.asked = this.next;
    this.drop();
    this.listener.note(`A gap: this page was too slow for ${data.lost_count} entries of the log. They are being loaded.`);
    void this.connect();
  }

  /** The entry that was asked for again last. */
  private asked = -1;

  private decoded(frame: Frame): string {
    const data = frame.data as string;
    if (frame.encoding !== "base64") return data;
    const bytes = Uint8Array.from(atob(data), (char) => char.charCodeAt(0));
    return this.decoders[frame.type as "stdout" | "stderr"].decode(bytes, { stream: true });
  }
}
