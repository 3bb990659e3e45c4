/** The server refused a request: an RFC 9457 problem. `code` is stable, `detail` is for people. */
export class ProblemError extends Error {
  constructor(
    readonly status: number,
    readonly code: string,
    readonly detail: string,
  ) {
    super(`${code}: ${detail}`);
    this.name = "ProblemError";
  }
}

/** A job failed for good; `error`, `message` and `traceback` are those of its last attempt. */
export class JobFailed extends Error {
  constructor(
    readonly jobId: string,
    readonly error: string,
    message: string,
    readonly traceback: string,
  ) {
    super(`${error}: ${message}`);
    this.name = "JobFailed";
  }
}

/** A client cancelled the job. */
export class JobCancelled extends JobFailed {
  constructor(jobId: string) {
    super(jobId, "Cancelled", "a client cancelled the job", "");
    this.name = "JobCancelled";
  }
}

/** A job did not end within the time that the caller waited. */
export class NotFinished extends Error {
  constructor(jobId: string) {
    super(`job ${jobId} has not ended yet`);
    this.name = "NotFinished";
  }
}
