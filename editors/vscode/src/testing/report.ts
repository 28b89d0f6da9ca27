// What a run of tests says, told to the Test Explorer.

import * as vscode from "vscode";
import type { Output, RunEnded, Stream } from "../protocol";
import type { Listener } from "../runs";
import { isFileOf } from "./files";
import type { Framework, Reader, Result, State } from "./model";

const STREAMS: Stream[] = ["stdout", "stderr"];
const WORSE: State[] = ["skipped", "passed", "failed", "errored"];
// No test program says anything of use further on. What is in a line is a stranger's, and so is the time its pattern takes.
const LONGEST_LINE = 4096;

/** A file with tests, or a part of one. */
export interface TestData {
  folder: vscode.WorkspaceFolder;
  file: string;
  framework: Framework;
  names: string[];
}

export class Report implements Listener {
  private readonly rest = { stdout: "", stderr: "" };
  private readonly states = new Map<vscode.TestItem, State>();
  private end: RunEnded | undefined;
  /** Whether the program itself is not in the sandbox. */
  programMissing = false;

  constructor(
    private readonly run: vscode.TestRun,
    private readonly folder: vscode.WorkspaceFolder,
    private readonly framework: Framework,
    private reader: Reader,
    private readonly tests: [TestData, vscode.TestItem][],
  ) {}

  output({ stream, text }: Output): void {
    this.print(text);
    this.read(stream, text);
  }

  /** Read all of the output, with a fresh `reader`, where not all of it was told. */
  async catchUp(reader: Reader, whole: (runId: string, stream: Stream) => Promise<string>): Promise<void> {
    const { run_id, cut } = this.end ?? {};
    if (run_id === undefined || !cut?.length) return;
    this.reader = reader;
    for (const stream of STREAMS) {
      this.rest[stream] = "";
      this.read(stream, await whole(run_id, stream));
    }
  }

  private read(stream: Stream, text: string): void {
    const lines = (this.rest[stream] + text).split(/\r?\n/);
    this.rest[stream] = (lines.pop() ?? "").slice(0, LONGEST_LINE);
    for (const long of lines) {
      const line = long.slice(0, LONGEST_LINE);
      this.programMissing ||= this.framework.package?.missing.test(line) ?? false;
      for (const result of this.reader.line(stream, line)) this.tell(result);
    }
  }

  notice(text: string): void {
    this.print(`# ${text}\n`);
  }

  ended(run: RunEnded): void {
    this.end = run;
    this.print(`# ${run.summary}\n`);
  }

  /** No more is said: tests that nothing was said of did not run. `error` is why the run itself failed. */
  close(error?: string): void {
    for (const stream of STREAMS) {
      if (this.rest[stream]) this.read(stream, "\n");
    }
    for (const result of this.reader.end()) this.tell(result);
    const reason = error ?? this.end?.summary;
    for (const [, item] of this.tests) {
      if (this.states.has(item)) continue;
      if (reason === undefined) this.run.skipped(item);
      else this.run.errored(item, new vscode.TestMessage(`It did not run: ${reason}`));
    }
  }

  private tell(result: Result): void {
    for (const [data, item] of this.tests) {
      if (!concerns(result, data)) continue;
      const before = this.states.get(item);
      // Of a test that runs several times, with other parameters, the worst counts.
      if (before !== undefined && WORSE.indexOf(before) >= WORSE.indexOf(result.state)) continue;
      this.states.set(item, result.state);
      if (result.state === "passed") this.run.passed(item, result.durationMs);
      else if (result.state === "skipped") this.run.skipped(item);
      else this.run[result.state](item, this.message(result, item), result.durationMs);
    }
  }

  private message(result: Result, item: vscode.TestItem): vscode.TestMessage {
    const message = new vscode.TestMessage(result.message || "It failed.");
    const place = result.place && isFileOf(this.folder.uri.fsPath, result.place.file) ? result.place : undefined;
    const uri = place ? vscode.Uri.joinPath(this.folder.uri, place.file) : item.uri;
    const line = place?.line ?? item.range?.start.line ?? 0;
    if (uri) message.location = new vscode.Location(uri, new vscode.Position(line, 0));
    return message;
  }

  private print(text: string): void {
    // It is a terminal.
    this.run.appendOutput(text.replace(/\r?\n/g, "\r\n"));
  }
}

function concerns(result: Result, data: TestData): boolean {
  if (result.file !== undefined && result.file !== data.file) return false;
  return !result.names.length || result.names.join("\0") === data.names.join("\0");
}
