// pytest: how it is called, and what its verbose output says.

import { Framework, inWorkspace, Reader, Result, Selection, State } from "./model";

const STATES: Record<string, State> = {
  PASSED: "passed",
  XPASS: "passed",
  SKIPPED: "skipped",
  XFAIL: "skipped",
  FAILED: "failed",
  ERROR: "errored",
};

const STATUS = /^(\S[^:]*?\.py)::(.+?) (PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS)(?: \(.*\))?(?:\s+\[\s*\d+%\])?$/;
const SECTION = /^=+ (.+?) =+$/;
const HEADER = /^_+ (.+?) _+$/;
const FRAME = /^(\S.*?):(\d+): /;

export const pytest: Framework = {
  name: "pytest",
  package: { name: "pytest", missing: /No module named '?pytest\b/ },
  together: () => "",
  command: (selections) => [
    ...["python3", "-m", "pytest", "-v", "--tb=short", "--color=no", "--rootdir=.", "-p", "no:cacheprovider"],
    // A file that cannot be read keeps no other from being checked.
    "--continue-on-collection-errors",
    ...selections.flatMap(ids),
  ],
  reader: () => new PytestReader(),
};

function ids(selection: Selection): string[] {
  return selection.names.length ? selection.names.map((names) => [selection.file, ...names].join("::")) : [selection.file];
}

/** What is said below the results about one failure. */
interface Details {
  title: string;
  message: string[];
  frames: { file: string; line: number }[];
}

class PytestReader implements Reader {
  /** Failures whose details come later. */
  private readonly failing: Result[] = [];
  private readonly passed: Result[] = [];
  private inDetails = false;
  private details: Details | undefined;

  line(stream: "stdout" | "stderr", text: string): Result[] {
    if (stream !== "stdout") return [];
    const section = SECTION.exec(text);
    if (section) {
      const done = this.close();
      this.inDetails = section[1] === "FAILURES" || section[1] === "ERRORS";
      return done;
    }
    if (this.inDetails) return this.detail(text);
    const status = STATUS.exec(text);
    if (!status) return [];
    const [, file = "", path = "", word = ""] = status;
    // A test with parameters is one test here.
    const result: Result = { file, names: path.replace(/\[.*$/s, "").split("::"), state: STATES[word]! };
    if (result.state === "passed") this.passed.push(result);
    if (result.state !== "failed" && result.state !== "errored") return [result];
    this.failing.push(result);
    return [];
  }

  end(): Result[] {
    return [...this.close(), ...this.failing.splice(0)];
  }

  private detail(text: string): Result[] {
    const header = HEADER.exec(text);
    if (header?.[1] !== undefined) {
      const done = this.close();
      this.details = { title: header[1], message: [], frames: [] };
      return done;
    }
    if (text.startsWith("E  ")) this.details?.message.push(text.slice(1).replace(/^ {1,6}/, ""));
    const frame = FRAME.exec(text);
    const file = frame?.[1] === undefined ? undefined : inWorkspace(frame[1]);
    if (file !== undefined) this.details?.frames.push({ file, line: Number(frame?.[2]) - 1 });
    return [];
  }

  private close(): Result[] {
    const details = this.details;
    this.details = undefined;
    if (!details) return [];
    const message = details.message.join("\n");
    const collecting = /^ERROR collecting (.+)$/.exec(details.title);
    if (collecting?.[1] !== undefined) {
      return [{ file: collecting[1], names: [], state: "errored", message, place: details.frames.at(-1) }];
    }
    const title = details.title.replace(/^ERROR at (?:setup|teardown) of /, "").replace(/(?:\[| [([]).*$/s, "");
    const isNamed = (result: Result): boolean => result.names.join(".") === title;
    // In the order in which they failed, so that of two tests with one name each gets its own.
    const index = this.failing.findIndex(isNamed);
    const [failed] = index >= 0 ? this.failing.splice(index, 1) : [];
    // A subtest fails by itself: its test is said to have passed.
    const passed = this.passed.find(isNamed);
    const result: Result | undefined = failed ?? (passed && { ...passed, state: "failed" });
    if (!result) return [];
    const own = details.frames.filter((frame) => frame.file === result.file);
    return [{ ...result, message, place: own.at(-1) ?? details.frames.at(-1) }];
  }
}
