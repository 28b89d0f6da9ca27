// node --test: how it is called, and what it says in the Test Anything Protocol.

import { Framework, inWorkspace, Reader, Result, Selection } from "./model";

const SUBTEST = /^( *)# Subtest: (.*)$/;
const OUTCOME = /^( *)(not )?ok \d+ - (.*?)(?: # (SKIP|TODO)\b.*)?$/;
const FIELD = /^ *(\w+): ?(.*)$/;
// No longer than a path, and within a line: they are looked for everywhere in what a program printed.
const PLACE = /(?:file:\/\/)?(\/workspace\/[^:()'"\n]{1,500}):(\d+):\d+/;
const HEAD_PLACE = /(?:file:\/\/)?(\/workspace\/[^:()'"\n]{1,500}):(\d+)/;
const MOST_OF_A_FIELD = 20_000;
const COMPILER = /\[ERROR\] (.*)$/;
const COMPILER_PLACE = /^\s+([^\s:]+\.[mc]?tsx?):(\d+):\d+:$/;
const INDENT = 4;
const MOST_LINES = 200;

const TYPESCRIPT = /\.[mc]?ts$/;
// As the language server runs a file of tests: by esbuild or, where there is none, by a Node that knows types (22.6).
const TYPESCRIPT_TESTS = [
  'file=$1 made="/tmp/tests/${1%.*}.mjs"',
  "shift",
  "if command -v esbuild >/dev/null; then",
  '  esbuild "$file" --bundle --platform=node --packages=external --format=esm --sourcemap=inline --log-level=warning \\',
  '    --color=false --outfile="$made" && exec node --enable-source-maps --test "$@" "$made"',
  "else",
  '  exec node --enable-source-maps --experimental-strip-types --test "$@" "$file"',
  "fi",
].join("\n");

export const nodeTest: Framework = {
  name: "node --test",
  // A passed test does not say which file it is in.
  together: (file) => file,
  command: (selections) => {
    const options = ["--test-reporter=tap", ...selections.flatMap(patterns)];
    const files = selections.map(({ file }) => file);
    if (TYPESCRIPT.test(files[0] ?? "")) return ["sh", "-c", TYPESCRIPT_TESTS, "sh", ...files, ...options];
    return ["node", "--enable-source-maps", "--test", ...options, ...files];
  },
  reader: (selections) => new TapReader(selections[0]?.file ?? ""),
};

/** Newer versions match the names of the groups around a test too, with spaces between. */
function patterns(selection: Selection): string[] {
  return selection.names.map((names) => `--test-name-pattern=(^| )${escaped(names.at(-1) ?? "")}$`);
}

function escaped(text: string): string {
  return text.replace(/[\\^$.*+?()[\]{}|/]/g, "\\$&");
}

class TapReader implements Reader {
  private readonly names: string[] = [];
  /** The outcome whose details are being read, and where they stand. */
  private pending: { result: Result; indent: number; fields: Map<string, string>; field: string } | undefined;

  /** What was printed since the last outcome: all that is known of a file that failed by itself. */
  private printed: string[] = [];

  /** What the compiler refused, until it says where. */
  private refused: string | undefined;

  constructor(private readonly file: string) {}

  line(stream: "stdout" | "stderr", text: string): Result[] {
    if (stream !== "stdout") return this.compilation(text);
    if (this.pending && this.detail(text)) return [];
    const done = this.close();
    const subtest = SUBTEST.exec(text);
    if (subtest) {
      this.names.splice(depth(subtest[1]));
      this.names.push(unescaped(subtest[2] ?? ""));
    }
    else if (text.startsWith("# ") && this.printed.length < MOST_LINES) this.printed.push(text.slice(2));
    const outcome = OUTCOME.exec(text);
    if (outcome) this.open(outcome);
    return done;
  }

  end(): Result[] {
    return this.close();
  }

  /** What a compiler says, which runs before any test does. */
  private compilation(text: string): Result[] {
    const error = COMPILER.exec(text)?.[1];
    if (error !== undefined) this.refused = error;
    const place = this.refused === undefined ? null : COMPILER_PLACE.exec(text);
    const message = this.refused;
    if (place?.[1] === undefined || message === undefined) return [];
    this.refused = undefined;
    const file = inWorkspace(place[1]);
    return [{ names: [], state: "errored", message, place: file === undefined ? undefined : { file, line: Number(place[2]) - 1 } }];
  }

  private open([, space = "", failed, name = "", directive]: RegExpExecArray): void {
    const path = [...this.names.slice(0, depth(space)), unescaped(name)];
    // Older versions wrap the tests of a file in one named like it, and all do where the file itself fails.
    const made = this.file.replace(TYPESCRIPT, ".mjs");
    if (path[0] === this.file || path[0]?.endsWith(`/${this.file}`) || path[0] === `/tmp/tests/${made}`) path.shift();
    // A failed test that is still to be done breaks nothing.
    const state = directive ? "skipped" : failed ? "failed" : "passed";
    this.pending = {
      result: { names: path, state: state === "failed" && !path.length ? "errored" : state },
      indent: space.length + 2,
      fields: new Map(),
      field: "",
    };
  }

  /** Take a line of the details that follow an outcome, if it is one. */
  private detail(text: string): boolean {
    const pending = this.pending!;
    const indent = text.length - text.trimStart().length;
    if (text.trim() && indent < pending.indent) return false;
    const field = indent === pending.indent ? FIELD.exec(text) : null;
    if (field) {
      pending.field = field[1] ?? "";
      pending.fields.set(pending.field, /^\|-?$/.test(field[2] ?? "") ? "" : unquoted(field[2] ?? ""));
    } else if (pending.field && indent > pending.indent) {
      const before = pending.fields.get(pending.field);
      if ((before?.length ?? 0) < MOST_OF_A_FIELD) {
        pending.fields.set(pending.field, (before ? `${before}\n` : "") + text.slice(pending.indent + 2));
      }
    }
    return true;
  }

  private close(): Result[] {
    const pending = this.pending;
    this.pending = undefined;
    if (!pending) return [];
    const { fields, result } = pending;
    const printed = this.printed.splice(0);
    // What is in it has told why.
    if (fields.get("failureType") === "subtestsFailed" && !result.names.length) return [];
    const whole = result.names.length ? "" : printed.join("\n");
    const place = HEAD_PLACE.exec(whole) ?? PLACE.exec(fields.get("stack") ?? "") ?? PLACE.exec(fields.get("location") ?? "");
    const file = place?.[1] === undefined ? undefined : inWorkspace(place[1]);
    const duration = Number(fields.get("duration_ms"));
    return [
      {
        ...result,
        durationMs: Number.isFinite(duration) ? duration : undefined,
        message: whole || fields.get("error")?.trim(),
        place: file === undefined ? undefined : { file, line: Number(place?.[2]) - 1 },
      },
    ];
  }
}

function depth(space: string | undefined): number {
  return Math.floor((space?.length ?? 0) / INDENT);
}

function unescaped(text: string): string {
  return text.replace(/\\([#\\])/g, "$1");
}

function unquoted(text: string): string {
  return /^'.*'$/.test(text) ? text.slice(1, -1).replaceAll("\\'", "'") : text;
}
