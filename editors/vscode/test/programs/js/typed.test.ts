import assert from "node:assert/strict";
import { describe, it, test } from "node:test";

interface Pair {
  a: number;
  b: number;
}

function add({ a, b }: Pair): number {
  return a + b;
}

test("adds with types", () => {
  assert.equal(add({ a: 1, b: 1 }), 2);
});

describe("a typed group", () => {
  it("fails with types", () => {
    assert.equal(add({ a: 1, b: 1 }), 3, "no sum");
  });
});
