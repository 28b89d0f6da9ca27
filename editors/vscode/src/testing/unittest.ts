// Python's own unittest: how it is called, and what its verbose output says.

import { Framework, inWorkspace, Reader, Result, State } from "./model";

const HEAD = /^ *(\w+) \(([\w.]+)\)/;
const OUTCOME = /(?:^| \.\.\. )(ok|FAIL|ERROR|expected failure|unexpected success|skipped .*)$/;
const SECTION = /^(FAIL|ERROR): (\w+) \(([\w.]+)\)/;
const FRAME = /^ {2}File "(.+)", line (\d+)/;

export const unittest: Framework = {
  name: "unittest",
  together: () => "",
  command: (selections) => [
    ...["python3", "-m", "unittest", "-v"],
    ...selections.flatMap(({ file, names }) => {
      const module = file.replace(/\.py$/, "").replaceAll("/", ".");
      return names.length ? names.map((parts) => [module, ...parts].join(".")) : [module];
    }),
  ],
  reader: (selections) => new UnittestReader(selections.map(({ file }) => file)),
};

class UnittestReader implements Reader {
  /** The test whose outcome comes next. */
  private current: Result | undefined;
  private section: { result: Result; lines: string[] } | undefined;

  constructor(private readonly files: string[]) {}

  line(stream: "stdout" | "stderr", text: string): Result[] {
    if (stream !== "stderr") return [];
    const section = SECTION.exec(text);
    if (section) {
      const done = this.close();
      const [, word, method = "", owner = ""] = section;
      this.section = { result: { ...this.named(method, owner), state: word === "FAIL" ? "failed" : "errored" }, lines: [] };
      return done;
    }
    if (this.section) {
      if (!/^={70}$/.test(text) && !/^Ran \d+ test/.test(text)) {
        this.section.lines.push(text);
        return [];
      }
      return this.close();
    }
    return this.outcome(text);
  }

  end(): Result[] {
    return this.close();
  }

  private outcome(text: string): Result[] {
    const head = HEAD.exec(text);
    if (head) this.current = { ...this.named(head[1]!, head[2]!), state: "passed" };
    const word = OUTCOME.exec(text)?.[1];
    if (!this.current || word === undefined) return [];
    const result = { ...this.current, state: stateOf(word) };
    this.current = undefined;
    // Failures are told below, with what happened.
    if (result.state === "failed" && word === "unexpected success") return [{ ...result, message: word }];
    return result.state === "passed" || result.state === "skipped" ? [result] : [];
  }

  private close(): Result[] {
    const section = this.section;
    this.section = undefined;
    if (!section) return [];
    let place: Result["place"];
    let last = -1;
    section.lines.forEach((line, index) => {
      const frame = FRAME.exec(line);
      const file = frame?.[1] === undefined ? undefined : inWorkspace(frame[1]);
      if (file !== undefined) place = { file, line: Number(frame?.[2]) - 1 };
      if (frame || (last >= 0 && line.startsWith("    "))) last = index;
    });
    const message = section.lines.slice(last + 1).join("\n").replace(/\n?-{70}\s*$/, "").trim();
    return [{ ...section.result, message, place }];
  }

  /** The test that unittest calls `method (owner)`; Python before 3.11 leaves the method out of the owner. */
  private named(method: string, owner: string): Pick<Result, "file" | "names"> {
    const parts = owner.split(".");
    // A module that could not be imported, without the packages it is in.
    if (parts.includes("_FailedTest")) {
      const file = fileOf(method);
      return { file: this.files.find((known) => known === file || known.endsWith(`/${file}`)) ?? file, names: [] };
    }
    if (parts.at(-1) === method) parts.pop();
    const group = parts.pop() ?? "";
    return { file: fileOf(parts.join(".")), names: [group, method] };
  }
}

function fileOf(module: string): string {
  return `${module.replaceAll(".", "/")}.py`;
}

function stateOf(word: string): State {
  if (word === "ok" || word === "expected failure") return "passed";
  return word.startsWith("skipped") ? "skipped" : word === "ERROR" ? "errored" : "failed";
}
