// The status bar: what runs, and how the last run ended.

import * as vscode from "vscode";
import type { Listener } from "./runs";
import type { RunEnded, RunStarted } from "./protocol";
import { SECTION } from "./settings";

export class StatusBar implements Listener, vscode.Disposable {
  private readonly item = vscode.window.createStatusBarItem("sandbox", vscode.StatusBarAlignment.Left, 0);
  private readonly running = new Set<string>();

  constructor() {
    this.item.name = "Sandbox";
    this.item.command = `${SECTION}.showOutput`;
    this.show("$(play-circle) Sandbox", "No run yet. Click for the log panel.");
    this.item.show();
  }

  started(run: RunStarted): void {
    this.running.add(run.run_id);
    this.show(`$(sync~spin) Sandbox: ${this.running.size > 1 ? `${this.running.size} runs` : "running"}`, run.command.join(" "));
  }

  ended(run: RunEnded): void {
    this.running.delete(run.run_id);
    if (this.running.size) return;
    this.show(run.exit_code === 0 ? "$(pass) Sandbox: ok" : `$(error) Sandbox: ${outcome(run)}`, run.summary);
  }

  private show(text: string, tooltip: string): void {
    this.item.text = text;
    this.item.tooltip = tooltip;
  }

  dispose(): void {
    this.item.dispose();
  }
}

/** How a run failed, in a word or two. */
function outcome({ exit_code, reason, phase }: RunEnded): string {
  const itself = exit_code !== null && (reason === null || reason === "exit_code_nonzero");
  return itself ? `exit ${exit_code}` : (reason ?? phase).replaceAll("_", " ");
}
