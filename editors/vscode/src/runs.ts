// Runs: asked for, followed while they last, killed on demand.

import { randomUUID } from "node:crypto";
import * as vscode from "vscode";
import type { LanguageClient } from "vscode-languageclient/node";
import { LanguageServer, messageOf } from "./languageServer";
import * as protocol from "./protocol";

/** What is told of one run while it lasts. All are called in the order in which things happened. */
export interface Listener {
  started?(run: protocol.RunStarted): void;
  output?(output: protocol.Output): void;
  notice?(text: string): void;
  /** What happens before there is output, such as the installation of packages. */
  progress?(message: string): void;
  ended?(run: protocol.RunEnded): void;
}

/** A run that was asked for; its id is not known until it starts. */
interface Asked {
  token: string;
  spec: protocol.RunArguments;
  listeners: Listener[];
}

export class Runs {
  private readonly asked: Asked[] = [];
  private readonly live = new Map<string, Asked>();
  private readonly watchers: Listener[] = [];

  constructor(private readonly server: () => LanguageServer) {}

  /** Have every run told to `listener`. */
  watch(listener: Listener): void {
    this.watchers.push(listener);
  }

  /** Run, and answer when it is over; `cancel` kills it. */
  async run(
    spec: protocol.RunArguments,
    listeners: Listener[],
    cancel?: vscode.CancellationToken,
  ): Promise<protocol.RunAnswer> {
    const asked: Asked = { token: randomUUID(), spec, listeners };
    this.asked.push(asked);
    try {
      return await this.server().execute<protocol.RunAnswer>(protocol.RUN, spec, {
        cancel,
        token: asked.token,
        report: (message) => listeners.forEach((listener) => listener.progress?.(message)),
      });
    } catch (error) {
      this.giveUp(asked, messageOf(error));
      throw error;
    } finally {
      remove(this.asked, asked);
    }
  }

  /** All that a run printed to a stream. */
  async readOutput(runId: string, stream: protocol.Stream): Promise<string> {
    return await this.server().readOutput(runId, stream);
  }

  /** Hear what a client's server says of runs. */
  connect(client: LanguageClient): void {
    client.onNotification(protocol.runStarted, (run) => {
      const asked = this.askedBy(run);
      if (asked) {
        remove(this.asked, asked);
        this.live.set(run.run_id, asked);
      }
      for (const listener of this.listeners(run.run_id)) listener.started?.(run);
    });
    client.onNotification(protocol.output, (piece) => {
      for (const listener of this.listeners(piece.run_id)) listener.output?.(piece);
    });
    client.onNotification(protocol.notice, ({ run_id, text }) => {
      for (const listener of this.listeners(run_id)) listener.notice?.(text);
    });
    client.onNotification(protocol.runEnded, (run) => {
      this.end(run);
    });
  }

  private end(run: protocol.RunEnded): void {
    for (const listener of this.listeners(run.run_id)) listener.ended?.(run);
    this.live.delete(run.run_id);
  }

  /** A request that was cancelled, or whose server is gone, hears no more of its run: it is over. */
  private giveUp(asked: Asked, summary: string): void {
    for (const [run_id, held] of this.live) {
      if (held === asked) this.end({ run_id, phase: "killed", exit_code: null, reason: null, summary, artifacts: false, url: null });
    }
  }

  private askedBy(run: protocol.RunStarted): Asked | undefined {
    return this.asked.find(({ token }) => token === run.token) ?? this.asked.find(({ spec }) => isOf(run, spec));
  }

  /** Those who hear of a run; before there is one, all who asked for one. */
  private listeners(id: string | null): Listener[] {
    if (id === null) return this.asked.flatMap(({ listeners }) => listeners);
    return [...this.watchers, ...(this.live.get(id)?.listeners ?? [])];
  }
}

/** Whether a run may be the one that was asked for: where no command was given it is the server's choice. */
function isOf(run: protocol.RunStarted, { uri, command }: protocol.RunArguments): boolean {
  return (uri ?? null) === run.uri && (command === undefined || command.join("\0") === run.command.join("\0"));
}

function remove<T>(list: T[], value: T): void {
  const index = list.indexOf(value);
  if (index >= 0) list.splice(index, 1);
}
