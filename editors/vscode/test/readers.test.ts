// What the test programs really printed, in a sandbox, and what is read from it. test/output has their output, test/programs
// what they ran.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import * as path from "node:path";
import { test } from "node:test";
import { goTest } from "../src/testing/goTest";
import type { Framework, Result, Selection } from "../src/testing/model";
import { nodeTest } from "../src/testing/nodeTest";
import { pytest } from "../src/testing/pytest";
import { unittest } from "../src/testing/unittest";

const OUTPUT = path.resolve("test/output");

function read(framework: Framework, files: string[], printed: ["stdout" | "stderr", string][]): string[] {
  const selections: Selection[] = files.map((file) => ({ file, names: [] }));
  const reader = framework.reader(selections);
  const results: Result[] = [];
  for (const [stream, name] of printed) {
    for (const line of readFileSync(path.join(OUTPUT, name), "utf8").split("\n")) results.push(...reader.line(stream, line));
  }
  return [...results, ...reader.end()].map(words);
}

function words({ file, names, state, message, place }: Result): string {
  const at = place ? ` at ${place.file}:${place.line + 1}` : "";
  return `${[file, ...names].filter(Boolean).join(" > ")}: ${state}${at}${message ? ` ${JSON.stringify(message)}` : ""}`;
}

test("pytest", () => {
  const found = read(pytest, ["tests/test_pt.py"], [["stdout", "pytest.txt"]]);
  assert.deepEqual(found, [
    "tests/test_pt.py > test_passes: passed",
    "tests/test_pt.py > TestGroup > test_params: passed",
    "tests/test_pt.py > TestGroup > test_params: passed",
    "tests/test_pt.py > TestGroup > test_skipped: skipped",
    "tests/test_ut.py > Sums > test_later: skipped",
    "tests/test_ut.py > Sums > test_parts: passed",
    "tests/test_ut.py > Sums > test_right: passed",
    `tests/test_broken.py: errored at tests/test_broken.py:1 "ModuleNotFoundError: No module named 'nothing_here'"`,
    'tests/test_pt.py > test_error: errored at tests/test_pt.py:27 "RuntimeError: no fixture"',
    String.raw`tests/test_pt.py > TestGroup > test_fails: failed at tests/test_pt.py:5 "AssertionError: not two\nassert 1 == 2"`,
    'tests/test_pt.py > TestGroup > test_params: failed at tests/test_pt.py:18 "assert 2 != 2"',
    'tests/test_ut.py > Sums > test_parts: failed at tests/test_ut.py:23 "AssertionError: 1 == 1"',
    String.raw`tests/test_ut.py > Sums > test_raises: failed at tests/test_ut.py:14 "ValueError: broken\nin two lines"`,
    'tests/test_ut.py > Sums > test_wrong: failed at tests/test_ut.py:11 "AssertionError: 2 != 3 : no sum"',
  ]);
});

test("unittest", () => {
  const files = ["tests/test_ut.py", "tests/test_unimportable.py"];
  assert.deepEqual(read(unittest, files, [["stderr", "unittest.txt"]]), [
    "tests/test_ut.py > Sums > test_later: skipped",
    "tests/test_ut.py > Sums > test_right: passed",
    String.raw`tests/test_ut.py > Sums > test_raises: errored at tests/test_ut.py:14 "ValueError: broken\nin two lines"`,
    `tests/test_unimportable.py: errored at tests/test_unimportable.py:2 "ModuleNotFoundError: No module named 'nothing_here'"`,
    'tests/test_ut.py > Sums > test_parts: failed at tests/test_ut.py:23 "AssertionError: 1 == 1"',
    'tests/test_ut.py > Sums > test_wrong: failed at tests/test_ut.py:11 "AssertionError: 2 != 3 : no sum"',
  ]);
});

test("node --test", () => {
  assert.deepEqual(read(nodeTest, ["js/sum.test.mjs"], [["stdout", "node.txt"]]), [
    "adds: passed",
    String.raw`a group > fails in it: failed at js/sum.test.mjs:10 "no sum\n\n2 !== 3"`,
    "a group > works in it: passed",
    'a group: failed at js/sum.test.mjs:8 "1 subtest failed"',
    "later: skipped",
    String.raw`has parts > part: failed at js/sum.test.mjs:18 "boom\nboom"`,
    'has parts: failed at js/sum.test.mjs:16 "1 subtest failed"',
  ]);
});

test("node --test of a file that is no program", () => {
  const [found, ...others] = read(nodeTest, ["js/bad.test.js"], [["stdout", "node-broken.txt"]]);
  assert.match(found ?? "", /^: errored at js\/bad\.test\.js:3 ".*SyntaxError: Unexpected token ';'/);
  assert.deepEqual(others, []);
});

test("node --test of TypeScript", () => {
  assert.deepEqual(read(nodeTest, ["js/typed.test.ts"], [["stdout", "node-typed.txt"]]), [
    "adds with types: passed",
    String.raw`a typed group > fails with types: failed at js/typed.test.ts:19 "no sum\n\n2 !== 3"`,
    'a typed group: failed at js/typed.test.ts:17 "1 subtest failed"',
  ]);
  assert.deepEqual(read(nodeTest, ["js/typed.test.ts"], [["stderr", "node-typed-broken.txt"]]), [
    String.raw`: errored at js/typed.test.ts:22 "Unexpected \"=\""`,
  ]);
});

test("go test", () => {
  assert.deepEqual(read(goTest, ["calc/calc_test.go"], [["stdout", "go.txt"]]), [
    "TestRight: passed",
    String.raw`TestWrong: failed at calc/calc_test.go:12 "got 2\ntwice\nin lines"`,
    'TestParts: failed at calc/calc_test.go:17 "one is wrong"',
    "TestLater: skipped",
    'TestPanics: failed at calc/calc_test.go:25 "panic: runtime error: invalid memory address or nil pointer dereference [recovered]"',
  ]);
});

test("go test of a package that does not compile", () => {
  const printed: ["stdout" | "stderr", string][] = [["stderr", "go-broken.stderr.txt"], ["stdout", "go-broken.stdout.txt"]];
  assert.deepEqual(read(goTest, ["calc/calc_test.go"], printed), [
    'calc/calc_test.go: errored at calc/calc.go:3 "undefined: nope"',
  ]);
});

test("what a program prints does not take longer to read than to print", () => {
  const line = (text: string): string => text.slice(0, 4096);
  const hostile = [
    line("a.py::x" + " PASSED (".repeat(500)),
    line("    at (" + "/workspace/".repeat(400)),
    line("= " + " =".repeat(2000) + "x"),
    line("_ " + " _".repeat(2000) + "x"),
    line("a".repeat(2000) + ":1".repeat(1000)),
    line("ok 1 - " + " # SKI".repeat(600)),
    line("      stack: " + "/workspace/a:1".repeat(280)),
    line(" ... ".repeat(800)),
    line("test_a (" + "a.".repeat(2000)),
    line("/workspace/" + "x".repeat(4000)),
  ];
  for (const framework of [pytest, unittest, nodeTest, goTest]) {
    const reader = framework.reader([{ file: "a.py", names: [] }]);
    const began = process.cpuUsage();
    for (const stream of ["stdout", "stderr"] as const) {
      reader.line(stream, "not ok 1 - x");
      for (const text of hostile) for (let count = 0; count < 100; count++) reader.line(stream, text);
    }
    reader.end();
    assert.ok(process.cpuUsage(began).user < 5e6, framework.name);
  }
});

test("a trace that leads elsewhere leads nowhere", () => {
  const reader = unittest.reader([{ file: "test_x.py", names: [] }]);
  const lines = ["ERROR: test_a (test_x.T.test_a)", "-".repeat(70), '  File "/workspace/../etc/passwd", line 1, in x', "    y", "E: no"];
  for (const line of lines) reader.line("stderr", line);
  assert.deepEqual(reader.end().map(words), ['test_x.py > T > test_a: errored "E: no"']);
});
