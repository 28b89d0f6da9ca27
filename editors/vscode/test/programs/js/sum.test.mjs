import { describe, it, test } from "node:test";
import assert from "node:assert";

test("adds", () => {
  assert.strictEqual(1 + 1, 2);
});

describe("a group", () => {
  it("fails in it", () => {
    assert.strictEqual(1 + 1, 3, "no sum");
  });
  it("works in it", () => {});
});

test.skip("later", () => {});
test("has parts", async (t) => {
  await t.test("part", () => {
    throw new TypeError("boom\nboom");
  });
});
