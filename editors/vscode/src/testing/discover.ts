// Tests found by reading their files. Nothing is run for it: code that was not run in a sandbox yet is not run outside.

import type { Found, Framework } from "./model";
import { goTest } from "./goTest";
import { nodeTest } from "./nodeTest";
import { pytest } from "./pytest";
import { unittest } from "./unittest";

export interface Discovery {
  framework: Framework;
  tests: Found[];
}

/** The names of files that may have tests, as VS Code's globs. */
export const PATTERN = `**/{${[
  "test_*.py",
  "*_test.py",
  "*_test.go",
  ...["js", "mjs", "cjs", "ts", "mts", "cts"].flatMap((suffix) => [`*.test.${suffix}`, `*-test.${suffix}`, `*_test.${suffix}`, `test-*.${suffix}`]),
].join(",")}}`;

const NAME = /(?:^|\/)(?:test_[^/]*\.py|[^/]*_test\.(?:py|go)|[^/]*[.\-_]test\.[mc]?[jt]s|test-[^/]*\.[mc]?[jt]s)$/;

/** Whether a file of that name may have tests. */
export function mayHaveTests(file: string): boolean {
  return NAME.test(file);
}

/** Return the tests of a file, or nothing where it has none that can be run. */
export function discover(file: string, text: string): Discovery | undefined {
  const found = file.endsWith(".py") ? inPython(text) : file.endsWith(".go") ? inGo(text) : inNode(text);
  return found.tests.length ? { ...found, tests: merged(found.tests) } : undefined;
}

/** Tests of one name in one place are one test: what a program says of them does not tell them apart. */
function merged(tests: Found[]): Found[] {
  const byName = new Map<string, Found>();
  for (const test of tests) {
    const before = byName.get(test.name);
    byName.set(test.name, before ? { ...before, children: [...before.children, ...test.children] } : test);
  }
  return [...byName.values()].map((test) => ({ ...test, children: merged(test.children) }));
}

interface Open {
  found: Found;
  indent: number;
}

function inPython(text: string): Discovery {
  const tests: Found[] = [];
  let group: Found | undefined;
  // Every test belongs to unittest, or pytest has to run the file; it runs those of unittest too.
  let isUnittest = true;
  let caseGroup = false;
  for (const [line, source] of codeLines(text, ['"""', "'''"])) {
    const classLine = /^class\s+(\w+)\s*(?:\(([^)]*)\))?/.exec(source);
    if (classLine) {
      const [, name = "", bases = ""] = classLine;
      caseGroup = /TestCase\b/.test(bases);
      group = caseGroup || name.startsWith("Test") ? { name, line, children: [] } : undefined;
      if (group) tests.push(group);
      continue;
    }
    const method = /^(\s*)(?:async\s+)?def\s+(test\w*)\s*\(/.exec(source);
    if (method) {
      const [, indent = "", name = ""] = method;
      const test: Found = { name, line, children: [] };
      if (!indent) {
        tests.push(test);
        isUnittest = false;
      } else if (group && /^(?: {1,4}|\t)$/.test(indent)) {
        group.children.push(test);
        isUnittest &&= caseGroup;
      }
    }
    // What is at the margin, other than a comment or a closing bracket, ends the class.
    if (/^[^\s#)\]}]/.test(source) && !classLine) group = undefined;
  }
  const full = tests.filter((test) => test.children.length || test.name.startsWith("test"));
  return { framework: isUnittest ? unittest : pytest, tests: full };
}

function inGo(text: string): Discovery {
  const tests: Found[] = [];
  for (const [line, source] of codeLines(text, ["`"])) {
    const match = /^func\s+(Test(?:[^a-z\s(]\w*)?)\s*\(\s*\w+\s+\*testing\.T\s*\)/.exec(source);
    if (match?.[1] && match[1] !== "TestMain") tests.push({ name: match[1], line, children: [] });
  }
  return { framework: goTest, tests };
}

function inNode(text: string): Discovery {
  const tests: Found[] = [];
  // Other test programs spell their tests alike.
  if (!/["']node:test["']/.test(text)) return { framework: nodeTest, tests };
  const open: Open[] = [];
  text.split(/\r?\n/).forEach((source, line) => {
    const match = /^(\s*)(?:await\s+)?(describe|suite|test|it)(?:\.\w+)?\s*\(\s*(["'`])((?:\\.|(?!\3)[^\\])*)\3/.exec(source);
    if (!match) return;
    const [, space = "", word = "", , quotedName = ""] = match;
    const indent = space.replaceAll("\t", "    ").length;
    while (open.length && open[open.length - 1]!.indent >= indent) open.pop();
    const found: Found = { name: quotedName.replace(/\\(.)/g, "$1"), line, children: [] };
    (open[open.length - 1]?.found.children ?? tests).push(found);
    if (word === "describe" || word === "suite") open.push({ found, indent });
  });
  return { framework: nodeTest, tests };
}

/** The lines of a text that are not inside a long string. */
function* codeLines(text: string, quotes: string[]): Generator<[number, string]> {
  let inside: string | undefined;
  for (const [line, source] of text.split(/\r?\n/).entries()) {
    if (inside === undefined) yield [line, source];
    for (let at = 0; at < source.length; ) {
      const quote: string | undefined = inside ?? quotes.find((candidate) => source.startsWith(candidate, at));
      if (inside === undefined && quote === undefined) {
        if (source[at] === "#" && quotes.length > 1) break;
        at += 1;
      } else if (source.startsWith(quote!, at)) {
        inside = inside === undefined ? quote : undefined;
        at += quote!.length;
      } else at += 1;
    }
  }
}
