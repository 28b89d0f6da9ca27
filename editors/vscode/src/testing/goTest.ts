// go test: how it is called, and what its verbose output says.

import * as path from "node:path";
import { Framework, inWorkspace, Reader, Result, Selection, State } from "./model";

const STATES: Record<string, State> = { PASS: "passed", FAIL: "failed", SKIP: "skipped" };
const OUTCOME = /^( *)--- (PASS|FAIL|SKIP): (\S+) \(([\d.]+)s\)/;
const PLACE = /^\s*([^\s:]+\.go):(\d+)(?::\d+)?: (.*)$/;
const FRAME = /^\t(\/workspace\/[^\s:]+\.go):(\d+)/;
const BROKEN = /^FAIL\t\S+ \[(?:build|setup) failed\]/;

const MOST_LINES = 200;

export const goTest: Framework = {
  name: "go test",
  // A package is a directory.
  together: (file) => path.posix.dirname(file),
  // In the directory itself: its module need not be that of the folder.
  command: (selections) => ["sh", "-c", 'cd "$0" && exec go test -v "$@"', directoryOf(selections), ...pattern(selections)],
  // Not in the workspace, where it would be `go/`.
  env: { GOPATH: "/tmp/go" },
  reader: (selections) => new GoReader(selections),
};

function directoryOf(selections: Selection[]): string {
  return path.posix.dirname(selections[0]?.file ?? ".");
}

function pattern(selections: Selection[]): string[] {
  const names = selections.flatMap((selection) => selection.names.map((parts) => parts[0] ?? ""));
  return names.length ? ["-run", `^(${names.join("|")})$`] : [];
}

class GoReader implements Reader {
  private message: string[] = [];
  private place: Result["place"];
  /** A failed test that may have panicked, which is said after its outcome. */
  private failed: Result | undefined;

  constructor(private readonly selections: Selection[]) {}

  line(stream: "stdout" | "stderr", text: string): Result[] {
    // What was said before belongs to another test; subtests are part of theirs.
    if (stream === "stdout" && /^=== RUN\s+[^/\s]+$/.test(text)) return this.close();
    const outcome = stream === "stdout" ? OUTCOME.exec(text) : null;
    if (outcome) return outcome[1] ? [] : this.outcome(outcome);
    if (BROKEN.test(text)) return this.broken();
    this.remember(text);
    return [];
  }

  end(): Result[] {
    return this.close();
  }

  private outcome([, , word = "", name = "", seconds]: RegExpExecArray): Result[] {
    const result: Result = { names: [name], state: STATES[word]!, durationMs: Number(seconds) * 1000 };
    if (result.state === "failed") {
      this.failed = result;
      return [];
    }
    return [...this.close(), result];
  }

  private broken(): Result[] {
    const told = { message: this.message.join("\n"), place: this.place };
    return this.selections.map(({ file }) => ({ file, names: [], state: "errored", ...told }));
  }

  private remember(text: string): void {
    const found = PLACE.exec(text) ?? FRAME.exec(text);
    if (found?.[1] !== undefined) {
      const absolute = found[1].startsWith("/");
      const file = inWorkspace(absolute ? found[1] : path.posix.join(directoryOf(this.selections), found[1]));
      if (file !== undefined) this.place ??= { file, line: Number(found[2]) - 1 };
      if (found[3] !== undefined) this.message.push(found[3]);
    } else if (/^(?:panic|fatal error): /.test(text) || (this.message.length && /^ {8}/.test(text))) {
      this.message.push(text.trim());
    }
    this.message.splice(MOST_LINES);
  }

  private close(): Result[] {
    const failed = this.failed;
    const told = { message: this.message.join("\n"), place: this.place };
    this.failed = undefined;
    this.message = [];
    this.place = undefined;
    return failed ? [{ ...failed, ...told }] : [];
  }
}
