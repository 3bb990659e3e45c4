/**
 * What the payload of a task's job is: JSON that any language can read (docs/tasks.md, "The
 * envelope"). Values that JSON lacks travel as `{"$type": name, "value": text}`.
 */

export interface Call {
  task: string;
  args: unknown[];
  kwargs: Record<string, unknown>;
  queue?: string;
  id?: string;
}

export interface Envelope extends Call {
  v: 1;
  then?: Call[];
  gather?: string[];
  even_failed?: boolean;
  trace?: Record<string, string>;
}

/** A number of Python's decimal module, as its text: JavaScript would round it. */
export class Decimal {
  constructor(readonly text: string) {}
}

/** A value of a type that JavaScript has no counterpart for: `path`, `date`, `time`, `uuid`... */
export class TaggedValue {
  constructor(
    readonly type: string,
    readonly value: string,
  ) {}
}

/** Write a value as JSON, with types that JSON lacks as tagged objects. */
export function encode(value: unknown): string {
  return JSON.stringify(tagged(value));
}

/** Read JSON that `encode` or a Python application wrote. */
export function decode(text: string): unknown {
  return untagged(JSON.parse(text));
}

/** Read the payload of a job; an Error says what is wrong with it. */
export function readEnvelope(payload: string): Envelope {
  const members = decode(payload) as Partial<Envelope> | null;
  if (typeof members !== "object" || members === null || members.v !== 1) {
    throw new Error(`not a task envelope of version 1: ${payload.slice(0, 60)}`);
  }
  if (typeof members.task !== "string" || !Array.isArray(members.args)) {
    throw new Error(`the envelope has no task or no args: ${payload.slice(0, 60)}`);
  }
  return { ...members, kwargs: members.kwargs ?? {} } as Envelope;
}

function tagged(value: unknown): unknown {
  if (typeof value === "bigint") {
    throw new TypeError("a bigint has no form in JSON that keeps it: pass a Decimal or a string");
  }
  if (typeof value === "number" && !Number.isFinite(value)) {
    throw new TypeError(`${value} has no form in JSON`);
  }
  if (value instanceof Date) {
    return { $type: "datetime", value: value.toISOString().replace("Z", "+00:00") };
  }
  if (value instanceof Uint8Array) {
    return { $type: "bytes", value: Buffer.from(value).toString("base64") };
  }
  if (value instanceof Decimal) {
    return { $type: "decimal", value: value.text };
  }
  if (value instanceof TaggedValue) {
    return { $type: value.type, value: value.value };
  }
  if (Array.isArray(value)) {
    return value.map(tagged);
  }
  if (typeof value === "object" && value !== null) {
    const members = Object.entries(value).map(([name, member]) => [name, tagged(member)]);
    const names = members.map(([name]) => name).sort();
    // An object of just these two members would be taken for a tag, so it travels as its items.
    const looksLikeTag = names.length === 2 && names[0] === "$type" && names[1] === "value";
    return looksLikeTag ? { $type: "dict", value: members } : Object.fromEntries(members);
  }
  return value;
}

function untagged(value: unknown): unknown {
  if (Array.isArray(value)) {
    return value.map(untagged);
  }
  if (typeof value !== "object" || value === null) {
    return value;
  }
  const members = value as Record<string, unknown>;
  const type = members["$type"];
  if (typeof type === "string" && "value" in members && Object.keys(members).length === 2) {
    const text = members["value"];
    if (type === "dict" && Array.isArray(text)) {
      return Object.fromEntries(text.map(([name, member]) => [name, untagged(member)]));
    }
    if (typeof text === "string") {
      switch (type) {
        case "datetime":
          return new Date(text);
        case "bytes":
          return new Uint8Array(Buffer.from(text, "base64"));
        case "decimal":
          return new Decimal(text);
        default:
          return new TaggedValue(type, text);
      }
    }
  }
  return Object.fromEntries(Object.entries(members).map(([name, each]) => [name, untagged(each)]));
}
