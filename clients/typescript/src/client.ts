/** Send jobs and ask for their results, over the HTTP API of version 1. */
import { randomUUID } from "node:crypto";

import { decode, encode, type Envelope } from "./envelope.js";
import { JobCancelled, JobFailed, NotFinished, ProblemError } from "./errors.js";
import type { components } from "./api.js";

export interface JourneymanOptions {
  /** The address of the HTTP API; the default is $JOURNEYMAN_HTTP_URL or this machine. */
  url?: string;
  /** The secret of a token, if the server has an auth file. */
  token?: string;
  /** How long one request may take, waits apart. */
  timeoutMs?: number;
}

export interface SendOptions {
  queue?: string;
  kwargs?: Record<string, unknown>;
  /** How often to try again after a failure. */
  retries?: number;
  priority?: number;
  /** Start at this time instead of now. */
  at?: Date;
  /** If its worker dies, the job runs again after this time. */
  leaseMs?: number;
  /** How long the job and its result are kept. */
  ttlMs?: number;
  /** Limits and turns of the queue that are per key apply to jobs of the same key. */
  key?: string;
  /** The id of the job, a random UUID; the same id is added once. */
  id?: string;
}

export type JobView = components["schemas"]["JobView"];

const DEFAULT_URL = "http://127.0.0.1:5679";
const DEFAULT_LEASE_MS = 30_000;
const DEFAULT_TTL_MS = 7 * 24 * 3600 * 1000;
const WAIT_MS = 20_000;

export class Journeyman {
  readonly url: string;
  private readonly token: string | undefined;
  private readonly timeoutMs: number;

  constructor(options: JourneymanOptions = {}) {
    this.url = (options.url ?? process.env["JOURNEYMAN_HTTP_URL"] ?? DEFAULT_URL).replace(/\/$/, "");
    this.token = options.token ?? process.env["JOURNEYMAN_TOKEN"];
    this.timeoutMs = options.timeoutMs ?? 10_000;
  }

  /** Add a job of a task; when the promise is kept, the job is on the server's disk. */
  async send<T = unknown>(task: string, args: unknown[] = [], options: SendOptions = {}): Promise<Job<T>> {
    const envelope: Envelope = { v: 1, task, args, kwargs: options.kwargs ?? {} };
    return this.sendEnvelope<T>(envelope, options);
  }

  /** Add a job with a whole envelope; workers use it for the next job of a chain. */
  async sendEnvelope<T = unknown>(envelope: Envelope, options: SendOptions = {}): Promise<Job<T>> {
    const id = options.id ?? randomUUID();
    const body = {
      id,
      queue: options.queue ?? "default",
      payload: encode(envelope),
      max_fails: (options.retries ?? 0) + 1,
      priority: options.priority ?? 0,
      ttr_ms: options.leaseMs ?? DEFAULT_LEASE_MS,
      ttl_ms: options.ttlMs ?? DEFAULT_TTL_MS,
      ...(options.at ? { at: options.at.toISOString() } : {}),
      ...(options.key ? { key: options.key } : {}),
    };
    try {
      await this.request("POST", "/v1/work/jobs", body);
    } catch (error) {
      // The reply to an earlier try was lost: the job is there.
      if (!(error instanceof ProblemError && error.code === "duplicate_job")) throw error;
    }
    return new Job<T>(this, id);
  }

  /**
   * An event happens: jobs that wait for it (`jm.wait_for` of Python) go on. On the server's disk when the promise is
   * kept; the same again changes nothing, another value is refused (`event_differs`).
   */
  async emit(event: string, value: unknown = null): Promise<void> {
    const text = value === null || value === undefined ? "" : encode(value);
    await this.request("PUT", `/v1/work/events/${encodeURIComponent(event)}`, { value: text });
  }

  /** A job that was sent earlier, from anywhere. */
  job<T = unknown>(id: string): Job<T> {
    return new Job<T>(this, id);
  }

  /** One request of the API; refusals are ProblemErrors. */
  async request(method: string, path: string, body?: unknown, waitMs = 0, signal?: AbortSignal): Promise<any> {
    const headers: Record<string, string> = {};
    if (this.token) headers["Authorization"] = `Bearer ${this.token}`;
    if (body !== undefined) headers["Content-Type"] = "application/json";
    const limit = AbortSignal.timeout(this.timeoutMs + waitMs);
    const stop = new AbortController();
    const abort = () => stop.abort((signal?.aborted ? signal : limit).reason);
    limit.addEventListener("abort", abort);
    signal?.addEventListener("abort", abort);
    if (signal?.aborted) abort();
    try {
      const reply = await fetch(this.url + path, {
        method,
        headers,
        signal: stop.signal,
        ...(body === undefined ? {} : { body: JSON.stringify(body) }),
      });
      const text = await reply.text();
      if (reply.ok) return text ? JSON.parse(text) : undefined;
      throw problemOf(reply.status, text);
    } finally {
      limit.removeEventListener("abort", abort);
      signal?.removeEventListener("abort", abort);
    }
  }
}

/** A job that was sent. */
export class Job<T = unknown> {
  constructor(
    private readonly client: Journeyman,
    readonly id: string,
  ) {}

  /** Wait for the returned value; JobFailed, JobCancelled, or NotFinished after `timeoutMs`. */
  async result(options: { timeoutMs?: number } = {}): Promise<T> {
    const deadline = Date.now() + (options.timeoutMs ?? 60_000);
    for (;;) {
      const waitMs = Math.max(0, Math.min(WAIT_MS, deadline - Date.now()));
      try {
        const ending = await this.client.request(
          "GET",
          `/v1/work/jobs/${this.id}/result?wait_ms=${waitMs}`,
          undefined,
          waitMs,
        );
        return this.value(ending);
      } catch (error) {
        const notYet = error instanceof ProblemError && error.code === "not_finished";
        if (!notYet) throw error;
        if (Date.now() >= deadline) throw new NotFinished(this.id);
      }
    }
  }

  /** End the job: a waiting one does not start, a running one is stopped by its worker. */
  async cancel(): Promise<void> {
    await this.client.request("POST", `/v1/work/jobs/${this.id}/cancel`, {});
  }

  /** The job as the server shows it: state, attempts, worker. */
  async show(): Promise<JobView> {
    return this.client.request("GET", `/v1/work/jobs/${this.id}`);
  }

  /** Forget the job and its result. */
  async delete(): Promise<void> {
    await this.client.request("DELETE", `/v1/work/jobs/${this.id}`);
  }

  private value(ending: { success: boolean; result?: string; result_base64?: string }): T {
    const text = ending.result ?? Buffer.from(ending.result_base64 ?? "", "base64").toString();
    if (ending.success) return (text === "" ? null : decode(text)) as T;
    let failure: { error?: string; message?: string; traceback?: string } = {};
    try {
      failure = JSON.parse(text);
    } catch {
      failure = { message: text }; // a worker that writes something else
    }
    if (failure.error === "Cancelled") throw new JobCancelled(this.id);
    const { error = "Error", message = "", traceback = "" } = failure;
    throw new JobFailed(this.id, error, message, traceback);
  }
}

function problemOf(status: number, text: string): ProblemError {
  try {
    const problem = JSON.parse(text);
    return new ProblemError(status, String(problem.code), String(problem.detail ?? problem.title));
  } catch {
    return new ProblemError(status, "unreadable", text.slice(0, 200));
  }
}
