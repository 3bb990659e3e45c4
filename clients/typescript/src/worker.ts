/**
 * Run jobs: lease, call the handler, report. The lease is renewed three times per lease while a
 * handler runs; a job that was cancelled or lost aborts the signal of its context.
 */
import { createHash } from "node:crypto";
import { hostname } from "node:os";

import { Journeyman } from "./client.js";
import { decode, encode, readEnvelope, type Envelope } from "./envelope.js";
import { ProblemError } from "./errors.js";

export interface JobContext {
  readonly id: string;
  readonly task: string;
  readonly queue: string;
  readonly attempt: number;
  readonly kwargs: Record<string, unknown>;
  /** Aborted when the job was cancelled, its lease was lost, or its timeout has passed. */
  readonly signal: AbortSignal;
  /** Say how far the job has come; the last word of each half second is sent. */
  progress(done: number, total?: number, note?: string): void;
  /** Keep a line with the job, and write it to the worker's log. */
  log(line: string): void;
  /** Renew the lease now; the signal is aborted if the job is no longer this worker's. */
  heartbeat(): Promise<void>;
}

export type Handler = (context: JobContext, ...args: any[]) => unknown;

export interface TaskOptions {
  /** How long one attempt may take; then its signal is aborted and it fails. */
  timeoutMs?: number;
  /** The delay before the first retry; it doubles each time, up to an hour. */
  backoffMs?: number;
}

export interface WorkerOptions {
  queues?: string[];
  /** Jobs at a time. */
  concurrency?: number;
  name?: string;
  /** Called for each line of the log; the default writes to stderr. */
  log?: (line: string) => void;
}

/** Throw it to be tried again after a chosen time. */
export class Retry extends Error {
  constructor(
    message = "retry",
    readonly afterMs?: number,
  ) {
    super(message);
    this.name = "Retry";
  }
}

/** Throw it when a retry cannot help: the job is dead at once. */
export class GiveUp extends Error {
  constructor(message: string) {
    super(message);
    this.name = "GiveUp";
  }
}

interface Leased {
  id: string;
  queue: string;
  payload?: string;
  payload_base64?: string;
  ttr_ms: number;
  attempt: number;
  given_back: number;
  fails: number;
  max_fails: number;
}

const WAIT_MS = 20_000;
const AGAIN_MS = 1_000;
const NOTES_MS = 500;
const MAX_TEXT = 1_000; // characters of a note or a line
const MAX_LINES = 200;
const HOUR_MS = 3_600_000;

export class Worker {
  private readonly tasks = new Map<string, { handler: Handler; options: TaskOptions }>();
  private readonly running = new Set<Promise<void>>();
  private readonly stopping = new AbortController();
  private readonly queues: string[];
  private readonly concurrency: number;
  private readonly name: string;
  private readonly log: (line: string) => void;

  constructor(
    private readonly client: Journeyman,
    options: WorkerOptions = {},
  ) {
    this.queues = options.queues ?? ["default"];
    this.concurrency = options.concurrency ?? 8;
    this.name = options.name ?? `${hostname()}-${process.pid}`;
    this.log = options.log ?? ((line) => process.stderr.write(`${line}\n`));
  }

  /** Register the function of a task. */
  task(name: string, handler: Handler, options: TaskOptions = {}): this {
    this.tasks.set(name, { handler, options });
    return this;
  }

  /** Run jobs until `stop` is called; then wait for those that run. */
  async run(): Promise<void> {
    while (!this.stopping.signal.aborted) {
      if (this.running.size >= this.concurrency) {
        await Promise.race(this.running);
        continue;
      }
      try {
        for (const job of await this.lease()) {
          const attempt = this.perform(job).finally(() => this.running.delete(attempt));
          this.running.add(attempt);
        }
      } catch (error) {
        if (this.stopping.signal.aborted) break;
        this.log(`the server cannot lease (${(error as Error).message}); trying again`);
        await new Promise((resolve) => setTimeout(resolve, AGAIN_MS));
      }
    }
    await Promise.allSettled(this.running);
  }

  /** Take no more jobs; `run` returns when those that run have ended. */
  stop(): void {
    this.stopping.abort();
  }

  private async lease(): Promise<Leased[]> {
    const body = {
      queues: this.queues,
      wait_ms: WAIT_MS,
      max: this.concurrency - this.running.size,
      worker: this.name,
    };
    const reply = await this.client.request("POST", "/v1/work/lease", body, WAIT_MS, this.stopping.signal);
    return reply.jobs ?? [];
  }

  private async perform(job: Leased): Promise<void> {
    const began = Date.now();
    let envelope: Envelope;
    try {
      envelope = readEnvelope(job.payload ?? Buffer.from(job.payload_base64 ?? "", "base64").toString());
    } catch (error) {
      await this.report(job, "fail", { result: failureOf(error), final: true });
      return;
    }
    const task = this.tasks.get(envelope.task);
    if (task === undefined) {
      const delay_ms = Math.min(1000 * 2 ** Math.min(job.given_back, 20), 300_000);
      this.log(`unknown task ${envelope.task}: job ${job.id} is given back for another worker`);
      await this.report(job, "fail", { result: "", release: true, delay_ms });
      return;
    }
    const stop = new AbortController();
    const renewing = setInterval(() => this.renew(job, stop), job.ttr_ms / 3);
    const limit = task.options.timeoutMs;
    const notes = new Notes(this.client, job.id);
    const timer = limit
      ? setTimeout(() => stop.abort(new Error(`took longer than ${limit} ms`)), limit)
      : undefined;
    try {
      const args = envelope.gather ? [await this.gather(envelope), ...envelope.args] : envelope.args;
      const context: JobContext = {
        id: job.id,
        task: envelope.task,
        queue: job.queue,
        attempt: job.attempt - job.given_back,
        kwargs: envelope.kwargs,
        signal: stop.signal,
        progress: (done, total, note) => notes.progress(done, total, note),
        log: (line) => {
          this.log(`${envelope.task} id=${job.id}: ${line}`);
          notes.line(line);
        },
        heartbeat: () => this.renew(job, stop),
      };
      const value = await Promise.race([task.handler(context, ...args), rejection(stop.signal)]);
      await notes.send();
      await this.follow(job, envelope, value);
      await this.report(job, "complete", { result: value === undefined || value === null ? "" : encode(value) });
      this.log(`done ${envelope.task} id=${job.id} attempt=${job.attempt} ${Date.now() - began} ms`);
    } catch (error) {
      if (stop.signal.reason instanceof LeaseLost) {
        this.log(`${stop.signal.reason.message} ${envelope.task} id=${job.id}`);
        return;
      }
      const first = task.options.backoffMs ?? 5_000;
      const backoff = Math.min(first * 2 ** Math.min(job.fails, 20), HOUR_MS);
      const delay_ms = error instanceof Retry && error.afterMs !== undefined ? error.afterMs : backoff;
      this.log(`failed ${envelope.task} id=${job.id} attempt=${job.attempt}: ${error}`);
      await notes.send();
      await this.report(job, "fail", {
        result: failureOf(error),
        ...(error instanceof GiveUp || job.fails + 1 >= job.max_fails ? { final: true } : { delay_ms }),
      });
    } finally {
      clearInterval(renewing);
      clearTimeout(timer);
    }
  }

  /** The results of the group that this job follows. */
  private async gather(envelope: Envelope): Promise<unknown[]> {
    const endings = envelope.gather!.map(async (id) => {
      const ending = await this.client.request("GET", `/v1/work/jobs/${id}/result`);
      const text = ending.result ?? Buffer.from(ending.result_base64 ?? "", "base64").toString();
      if (envelope.even_failed) {
        return ending.success
          ? { value: text === "" ? null : decode(text), failure: null }
          : { value: null, failure: JSON.parse(text) };
      }
      return text === "" ? null : decode(text);
    });
    return Promise.all(endings);
  }

  /** Add the next job of a chain, before this one completes: its id is derived, so it is added once. */
  private async follow(job: Leased, envelope: Envelope, value: unknown): Promise<void> {
    const [next, ...rest] = envelope.then ?? [];
    if (next === undefined) return;
    const following: Envelope = {
      v: 1,
      task: next.task,
      args: [value ?? null, ...(next.args ?? [])],
      kwargs: next.kwargs ?? {},
      ...(rest.length ? { then: rest } : {}),
    };
    await this.client.sendEnvelope(following, {
      id: next.id ?? nextId(job.id),
      queue: next.queue ?? job.queue,
      retries: job.max_fails - 1,
    });
  }

  private async renew(job: Leased, stop: AbortController): Promise<void> {
    try {
      await this.client.request("POST", `/v1/work/jobs/${job.id}/touch`, { ttr_ms: job.ttr_ms });
    } catch (error) {
      if (error instanceof ProblemError && error.status < 500) {
        stop.abort(new LeaseLost(error.code === "cancelled" ? "cancelled" : "lease lost"));
      }
    }
  }

  private async report(job: Leased, how: "complete" | "fail", body: object): Promise<void> {
    for (;;) {
      try {
        await this.client.request("POST", `/v1/work/jobs/${job.id}/${how}`, { attempt: job.attempt, ...body });
        return;
      } catch (error) {
        if (error instanceof ProblemError && error.status < 500) {
          this.log(`the outcome of job ${job.id} was refused: ${error.message}`);
          return;
        }
        // The server is away: the outcome must not be lost while the lease lasts.
        await new Promise((resolve) => setTimeout(resolve, AGAIN_MS));
      }
    }
  }
}

class LeaseLost extends Error {}

/** What a handler says about its job: collected, and sent together. It is lost if the server is away. */
class Notes {
  private words: { done?: number; total?: number; note?: string } = {};
  private lines: string[] = [];
  private timer: NodeJS.Timeout | undefined;

  constructor(
    private readonly client: Journeyman,
    private readonly id: string,
  ) {}

  progress(done: number, total?: number, note?: string): void {
    this.words = { done, ...(total === undefined ? {} : { total }), ...(note ? { note: note.slice(0, MAX_TEXT) } : {}) };
    this.timer ??= setTimeout(() => void this.send(), NOTES_MS);
  }

  line(line: string): void {
    this.lines = [...this.lines.slice(1 - MAX_LINES), line.slice(0, MAX_TEXT)];
    this.timer ??= setTimeout(() => void this.send(), NOTES_MS);
  }

  /** Send what has not been sent. */
  async send(): Promise<void> {
    clearTimeout(this.timer);
    this.timer = undefined;
    const body = { ...this.words, log: this.lines };
    if (Object.keys(this.words).length === 0 && this.lines.length === 0) return;
    this.words = {};
    this.lines = [];
    await this.client.request("POST", `/v1/work/jobs/${this.id}/progress`, body).catch(() => undefined);
  }
}

/** The id of the job that follows in a chain: the same as a Python worker derives. */
export function nextId(jobId: string): string {
  const digest = createHash("sha256");
  for (const part of [Buffer.from(jobId.replaceAll("-", ""), "hex"), Buffer.from("then")]) {
    digest.update(`${part.length}:`).update(part);
  }
  const bytes = digest.digest().subarray(0, 16);
  bytes[6] = (bytes[6]! & 0x0f) | 0x40;
  bytes[8] = (bytes[8]! & 0x3f) | 0x80;
  const hex = bytes.toString("hex");
  return [hex.slice(0, 8), hex.slice(8, 12), hex.slice(12, 16), hex.slice(16, 20), hex.slice(20)].join("-");
}

function failureOf(error: unknown): string {
  const { name = "Error", message = String(error), stack = "" } = (error ?? {}) as Partial<Error>;
  return JSON.stringify({ error: name, message: message.slice(0, 20_000), traceback: stack.slice(-20_000) });
}

function rejection(signal: AbortSignal): Promise<never> {
  return new Promise((_, reject) => {
    if (signal.aborted) reject(signal.reason);
    signal.addEventListener("abort", () => reject(signal.reason), { once: true });
  });
}
