"""A model of the original workq server: it takes commands, writes a log, and replays strictly.

It knows one job at a time, has no races, and refuses what the original refuses: so its logs are
those that the original writes on a good day, and what it replays the original replays.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from hypothesis import strategies as st

from journeyman.folds.workq import FoldedJob, JobState, expires_ns
from journeyman.formats.timed_frame import Instant
from journeyman.formats.workq import (
    Command,
    JobAdded,
    JobEvent,
    JobFinished,
    Record,
    UnknownCommand,
)

JOB_ID = bytes.fromhex("0000000a000040008000000000000001")
MAX_ATTEMPTS = 255
UNFINISHED = (JobState.NEW, JobState.PENDING, JobState.LEASED)


class ReplayError(Exception):
    """The original would answer with an error, or stop its replay."""


@dataclass
class Original:
    added: JobAdded | None = None
    state: JobState = JobState.NEW
    attempts: int = 0
    result: bytes | None = None

    @classmethod
    def replay(cls, records: Iterable[Record]) -> tuple[object, ...] | None:
        """The job as a client sees it, or None. Raises ReplayError."""
        job = cls()
        for record in records:
            job.take(record)
        if job.added is None:
            return None
        return job.added, job.state, job.attempts, 0, job.result

    def take(self, record: Record) -> None:
        if isinstance(record, JobAdded):
            self._refuse_if(self.added is not None)
            self.__init__(record)  # type: ignore[misc]
        elif isinstance(record, UnknownCommand):
            raise ReplayError
        elif record.hidden:
            pass  # an add that has expired, to it
        elif self.added is None:
            raise ReplayError
        elif isinstance(record, JobFinished):
            self._refuse_if(self.state not in UNFINISHED)
            completed = record.command == Command.COMPLETE
            self.state = JobState.COMPLETED if completed else JobState.FAILED
            self.result = record.result
        elif record.command == Command.START_ATTEMPT:
            self._refuse_if(self.state not in (JobState.NEW, JobState.PENDING))
            self._refuse_if(self.attempts >= (self.added.max_attempts or MAX_ATTEMPTS))
            self.state = JobState.LEASED
            self.attempts += 1
        elif record.command == Command.TIMEOUT_ATTEMPT:
            self._time_out(self.added.max_attempts)
        else:
            self.added = None

    def _time_out(self, max_attempts: int) -> None:
        self._refuse_if(self.state != JobState.LEASED)
        if 0 < max_attempts <= self.attempts:
            self.state, self.result = JobState.FAILED, b""
        else:
            self.state = JobState.PENDING

    @staticmethod
    def _refuse_if(refused: bool) -> None:
        if refused:
            raise ReplayError


def replay_all(records: Iterable[Record], now_ns: int = 0) -> dict[bytes, Original]:
    """The jobs of a whole log that is loaded at this time. Raises ReplayError.

    It ignores records of unknown jobs, adds that have expired, and timeouts of finished jobs.
    """
    jobs: dict[bytes, Original] = {}
    for record in records:
        job = jobs.setdefault(record.job_id, Original())
        if isinstance(record, JobAdded):
            if expires_ns(FoldedJob(record)) >= now_ns:
                job.take(record)
        elif isinstance(record, UnknownCommand) or (
            job.added is not None and not _is_late_timeout(job, record)
        ):
            job.take(record)
    return {key: job for key, job in jobs.items() if job.added is not None}


def _is_late_timeout(job: Original, record: Record) -> bool:
    return record.command == Command.TIMEOUT_ATTEMPT and job.state not in UNFINISHED


def history(data: st.DataObject, *, ends: bool = True) -> tuple[list[Record], Instant]:
    """The log of one job id that such a server writes, beginning with an add; and the time then.

    Without ``ends`` it is that of a single life.
    """
    commands = list(Command)[:8] if ends else [*list(Command)[2:4], *list(Command)[6:8]]
    server = Original()
    log: list[Record] = []
    now = 0
    for command in [Command.ADD, *data.draw(st.lists(st.sampled_from(commands), max_size=25))]:
        now += data.draw(st.integers(1, 3))
        record = _record(data, command, Instant(now), Instant(now - 1))
        try:
            server.take(record)
        except ReplayError:
            continue
        log.append(record)
    return log, Instant(now + 1)


def _record(data: st.DataObject, command: Command, now: Instant, created: Instant) -> Record:
    if command in (Command.COMPLETE, Command.FAIL):
        return JobFinished(now, JOB_ID, command, data.draw(st.binary(max_size=2)))
    if command not in (Command.ADD, Command.SCHEDULE):
        return JobEvent(now, JOB_ID, command)
    return JobAdded(
        logged=now,
        job_id=JOB_ID,
        name="jobs",
        ttr_ms=60_000,
        ttl_ms=60_000,
        priority=0,
        max_attempts=data.draw(st.integers(0, 3)),
        max_fails=data.draw(st.integers(0, 3)),
        payload=b"ping",
        time=created if command == Command.SCHEDULE else None,
        created=created,
        command=command,
    )
