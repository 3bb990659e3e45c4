/** Send jobs to a Journeyman server and run them. See README.md. */
export { Journeyman, Job } from "./client.js";
export type { JourneymanOptions, SendOptions } from "./client.js";
export { Worker, Retry, GiveUp } from "./worker.js";
export type { JobContext, Handler, TaskOptions, WorkerOptions } from "./worker.js";
export { JobFailed, JobCancelled, NotFinished, ProblemError } from "./errors.js";
export { Decimal, TaggedValue } from "./envelope.js";
export type { components, paths } from "./api.js";
