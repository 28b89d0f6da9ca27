// The log panel: the output of runs, as it comes.

import * as vscode from "vscode";
import type { Listener } from "./runs";
import type { Notice, Output, RunEnded, RunStarted } from "./protocol";
import { showsOutput } from "./settings";

export class LogPanel implements Listener, vscode.Disposable {
  private readonly channel = vscode.window.createOutputChannel("Sandbox");
  private readonly running = new Set<string>();
  private atLineStart = true;

  /** Bring the panel into view, and leave the cursor where it is. */
  show(): void {
    this.channel.show(true);
  }

  started(run: RunStarted): void {
    // The output of one run at a time is easier to read; runs that are under way together share the panel.
    if (!this.running.size) this.channel.clear();
    this.running.add(run.run_id);
    this.line(`$ ${run.command.map(quoted).join(" ")}`);
    if (showsOutput()) this.show();
  }

  output(piece: Output): void {
    this.channel.append(piece.text);
    if (piece.text) this.atLineStart = piece.text.endsWith("\n");
  }

  notice(text: Notice["text"]): void {
    this.line(`# ${text}`);
  }

  ended(run: RunEnded): void {
    this.running.delete(run.run_id);
    this.line(`# ${run.summary}`);
    if (run.url) this.line(`# ${run.url}`);
  }

  /** Say something that no run said. */
  line(text: string): void {
    this.channel.appendLine(this.atLineStart ? text : `\n${text}`);
    this.atLineStart = true;
  }

  dispose(): void {
    this.channel.dispose();
  }
}

/** A word as a shell would have to be given it, to be read and copied. */
function quoted(word: string): string {
  return /^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", `'\\''`)}'`;
}
