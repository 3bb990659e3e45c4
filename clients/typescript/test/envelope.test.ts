import assert from "node:assert/strict";
import { test } from "node:test";

import { Decimal, TaggedValue, decode, encode, readEnvelope } from "../src/envelope.js";
import { nextId } from "../src/worker.js";

test("values of JSON and those that it lacks come back as they were", () => {
  const value = {
    text: "ä",
    when: new Date("2026-11-18T02:00:00.000Z"),
    price: new Decimal("12.30"),
    file: new TaggedValue("path", "/tmp/x"),
    data: new Uint8Array([0, 255]),
    tag: { $type: "datetime", value: "not a time" },
    list: [1, null, true, { nested: new Decimal("1") }],
  };
  assert.deepEqual(decode(encode(value)), value);
});

test("what has no form in JSON is refused", () => {
  assert.throws(() => encode({ n: 10n }), /bigint/);
  assert.throws(() => encode([NaN]), /NaN/);
});

test("an envelope of another version or shape is refused", () => {
  assert.throws(() => readEnvelope('{"v": 2, "task": "t", "args": []}'), /version 1/);
  assert.throws(() => readEnvelope('{"v": 1, "task": 3, "args": []}'), /no task/);
  assert.throws(() => readEnvelope("null"), /version 1/);
  assert.deepEqual(readEnvelope('{"v": 1, "task": "t", "args": [1]}').kwargs, {});
});

test("the id of the next job of a chain is a version 4 UUID, the same every time", () => {
  const next = nextId("00000000-0000-4000-8000-000000000000");
  assert.match(next, /^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/);
  assert.equal(next, nextId("00000000-0000-4000-8000-000000000000"));
});
