// What the palette, the lens and the buttons do.

import * as path from "node:path";
import * as vscode from "vscode";
import { LSPErrorCodes, ResponseError } from "vscode-languageclient/node";
import type { LogPanel } from "./logPanel";
import { messageOf, SandboxError } from "./languageServer";
import type { RunAnswer, RunArguments } from "./protocol";
import type { Runs } from "./runs";

/** Run a document or a command: what a lens or another extension names, the file of a menu, or the active editor's. */
export async function run(runs: Runs, log: LogPanel, target?: unknown): Promise<RunAnswer | undefined> {
  const spec = specOf(target) ?? activeDocument();
  if (!spec) {
    void vscode.window.showInformationMessage("Open a file of the workspace to run it in the sandbox.");
    return undefined;
  }
  return await follow(runs, log, spec, `Running ${nameOf(spec)} in the sandbox`);
}

/** Run what ran last, with what the editor shows now. */
export async function runAgain(runs: Runs, log: LogPanel): Promise<RunAnswer | undefined> {
  return await follow(runs, log, {}, "Running in the sandbox");
}

/** Carry something out and tell the user what went wrong with it. */
export async function told<T>(log: LogPanel, action: () => Promise<T>): Promise<T | undefined> {
  try {
    return await action();
  } catch (error) {
    if (!isCancelled(error) && !(error instanceof SandboxError)) {
      const message = messageOf(error);
      log.line(`# ${message}`);
      void vscode.window.showErrorMessage(`Sandbox: ${message}`);
    }
    return undefined;
  }
}

export function isCancelled(error: unknown): boolean {
  return (
    error instanceof vscode.CancellationError ||
    (error instanceof ResponseError && error.code === LSPErrorCodes.RequestCancelled)
  );
}

async function follow(runs: Runs, log: LogPanel, spec: RunArguments, title: string): Promise<RunAnswer | undefined> {
  const options = { location: vscode.ProgressLocation.Notification, cancellable: true, title };
  return await vscode.window.withProgress(options, (progress, cancel) =>
    told(log, () => runs.run(spec, [log, { progress: (message) => progress.report({ message }) }], cancel)),
  );
}

function specOf(target: unknown): RunArguments | undefined {
  if (target instanceof vscode.Uri) return { uri: target.toString() };
  return typeof target === "object" && target !== null && Object.keys(target).length ? { ...target } : undefined;
}

function activeDocument(): RunArguments | undefined {
  const tab = vscode.window.tabGroups.activeTabGroup.activeTab?.input;
  // A tab is there before its editor is, and stays the one that is meant while the log panel has the cursor.
  const shown = [vscode.window.activeTextEditor?.document.uri, tab instanceof vscode.TabInputText ? tab.uri : undefined];
  const uri = shown.find((each) => each && ["file", "untitled"].includes(each.scheme));
  return uri && { uri: uri.toString() };
}

function nameOf(spec: RunArguments): string {
  if (spec.uri !== undefined) return path.posix.basename(vscode.Uri.parse(spec.uri).path);
  return spec.command?.[0] ?? "a command";
}
