// Tests that are found in a text, and what is not taken for one.

import assert from "node:assert/strict";
import { mkdirSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import * as path from "node:path";
import { test } from "node:test";
import { discover, mayHaveTests } from "../src/testing/discover";
import { isFileOf } from "../src/testing/files";
import type { Found } from "../src/testing/model";

function names(tests: Found[]): unknown[] {
  return tests.map((found) => (found.children.length ? [found.name, found.line + 1, names(found.children)] : [found.name, found.line + 1]));
}

function found(file: string, text: string): [string, unknown[]] | undefined {
  const discovery = discover(file, text);
  return discovery && [discovery.framework.name, names(discovery.tests)];
}

function program(file: string): [string, unknown[]] | undefined {
  return found(file, readFileSync(`test/programs/${file}`, "utf8"));
}

test("functions and classes are pytest's", () => {
  assert.deepEqual(program("tests/test_pt.py"), [
    "pytest",
    [["test_passes", 8], ["TestGroup", 12, [["test_fails", 13], ["test_params", 17], ["test_skipped", 21]]], ["test_error", 30]],
  ]);
});

test("test cases alone are unittest's", () => {
  assert.deepEqual(program("tests/test_ut.py"), [
    "unittest",
    [["Sums", 4, [["test_right", 5], ["test_wrong", 9], ["test_raises", 13], ["test_later", 17], ["test_parts", 20]]]],
  ]);
});

test("groups of node --test", () => {
  assert.deepEqual(program("js/sum.test.mjs"), [
    "node --test",
    [["adds", 4], ["a group", 8, [["fails in it", 9], ["works in it", 12]]], ["later", 15], ["has parts", 16]],
  ]);
});

test("functions of go test", () => {
  assert.deepEqual(program("go/calc/calc_test.go"), [
    "go test",
    [["TestRight", 5], ["TestWrong", 11], ["TestParts", 16], ["TestLater", 21], ["TestPanics", 23]],
  ]);
});

test("what stands in a string or a comment, or is no test", () => {
  const text = ['"""', "def test_in_text():", '"""', "# def test_comment():", "def helper():", "    def test_inner(): pass", "def test_it(): pass"];
  assert.deepEqual(found("test_a.py", text.join("\n")), ["pytest", [["test_it", 7]]]);
  assert.equal(found("a.test.js", 'import { test } from "vitest";\ntest("x", () => {});'), undefined);
  assert.deepEqual(found("a_test.go", "func TestMain(m *testing.M) {}\nfunc Testament(t *testing.T) {}\nfunc Test(t *testing.T) {}"), [
    "go test",
    [["Test", 3]],
  ]);
});

test("groups of node --test in TypeScript", () => {
  assert.deepEqual(program("js/typed.test.ts"), [
    "node --test",
    [["adds with types", 13], ["a typed group", 17, [["fails with types", 18]]]],
  ]);
});

test("tests of one name are one test", () => {
  const text = 'import { test, describe } from "node:test";\ntest("a", f);\ntest("a", g);\ndescribe("b", () => {\n  it("c", f);\n});\ndescribe("b", () => {\n  it("d", f);\n  it("c", f);\n});';
  assert.deepEqual(found("a.test.js", text), ["node --test", [["a", 2], ["b", 4, [["c", 5], ["d", 8]]]]]);
  assert.deepEqual(found("test_a.py", "def test_a(): pass\ndef test_a(): pass"), ["pytest", [["test_a", 1]]]);
});

test("a file that was written to take long takes no longer than others", () => {
  const began = process.cpuUsage();
  const slow = ['test("' + "\\".repeat(100_000), "test(" + " ".repeat(100_000), "class A(" + "(".repeat(100_000), "def test" + "a".repeat(100_000)];
  const text = ["import 'node:test'", ...slow].join("\n");
  for (const file of ["a.test.js", "test_a.py", "a_test.go"]) discover(file, text);
  assert.ok(process.cpuUsage(began).user < 5e6);
});

test("a file of a folder is one without links on the way to it", () => {
  const base = mkdtempSync(path.join(tmpdir(), "tidebox-"));
  try {
    mkdirSync(path.join(base, "folder", "sub"), { recursive: true });
    for (const file of ["outside.py", "folder/a.py", "folder/sub/b.py"]) writeFileSync(path.join(base, file), "");
    symlinkSync(base, path.join(base, "folder", "link"));
    symlinkSync(path.join(base, "outside.py"), path.join(base, "folder", "c.py"));
    symlinkSync(path.join(base, "folder"), path.join(base, "linked"));
    for (const folder of ["folder", "linked"]) {
      for (const file of ["a.py", "sub/b.py"]) assert.ok(isFileOf(path.join(base, folder), file), file);
      for (const file of ["", ".", "sub", "none.py", "c.py", "link/outside.py", "../outside.py", "sub/../../outside.py"]) {
        assert.ok(!isFileOf(path.join(base, folder), file), file);
      }
    }
  } finally {
    rmSync(base, { recursive: true });
  }
});

test("which files may have tests", () => {
  for (const file of ["test_a.py", "x/a_test.py", "a_test.go", "x/a.test.mjs", "test-a.cjs", "a-test.js", "a.test.ts", "x/a_test.mts"]) assert.ok(mayHaveTests(file), file);
  for (const file of ["a.py", "tests.py", "a.go", "a.js", "x/test_a.py/b.py", "a.test.tsx", "a.ts"]) assert.ok(!mayHaveTests(file), file);
});
