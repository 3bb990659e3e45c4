"""A workq log for the original, which stops at the first record that it would not accept today.

    OriginalReplay   its replay, one small state per job: which job it refuses, and why

It ignores records before the add of their job, which its own races write: such a job is new there,
even if it was completed. A job that it refuses or mistakes, and that it could have, is written
again: all its records are dropped, and the shortest history of its state (folds.workq.snapshot) is
appended. Such jobs stem from races of the original, from a retry in the form of earlier versions of
this program, or have more attempts than it can count. The segments change together (see
publication):

    step                                            a crash before the next step leaves
    1 write and sync NNN.log.rw for each segment    the old log; the .rw files are litter
    2 publish: all take the names of the old ones   the old log, or the new one
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from journeyman.clock import Clock
from journeyman.disk import Disk
from journeyman.folds import workq as fold
from journeyman.formats import workq
from journeyman.formats.framing import Buffer
from journeyman.formats.ledger import JobOptionsSet
from journeyman.logs import handover, publication
from journeyman.logs.holders import Holders, ask
from journeyman.logs.indexes import remove_index
from journeyman.logs.segments import workq_files
from journeyman.logs.workq.cleaning import REWRITE_SUFFIX, read_segment
from journeyman.logs.workq.log import WorkqLog
from journeyman.protocols.workq.replies import id_text

MAX_ATTEMPTS = 255
NEWER = "a record of a newer version"
_WOKEN_BY = (workq.Command.WAKE, workq.Command.START_ATTEMPT, workq.Command.DELETE)
_FINISHED = (fold.JobState.COMPLETED, fold.JobState.FAILED)


@dataclass(slots=True)
class _Job:
    max_attempts: int
    max_fails: int
    state: fold.JobState = fold.JobState.NEW
    attempts: int = 0


class OriginalReplay:
    """The replay of the original, which goes on after a refusal, without the job."""

    def __init__(self, now_ns: int) -> None:
        self._now_ns = now_ns
        self._early: set[bytes] = set()  # jobs with records before their add
        self._expired: set[bytes] = set()  # jobs whose add was skipped
        self.jobs: dict[bytes, _Job] = {}
        self.refused: dict[bytes, str] = {}
        self.parked: set[bytes] = set()

    def take(self, record: workq.Record) -> None:
        if isinstance(record, workq.JobFinished) and record.command == workq.Command.PARK:
            self.parked.add(record.job_id)
        elif isinstance(record, workq.JobEvent) and record.command in _WOKEN_BY:
            self.parked.discard(record.job_id)
        if record.job_id in self.refused:
            return
        reason = self._refusal(record)
        if reason:
            self.refused[record.job_id] = reason
            self.jobs.pop(record.job_id, None)

    def _refusal(self, record: workq.Record) -> str:
        if isinstance(record, workq.UnknownCommand):
            return NEWER
        if isinstance(record, workq.JobAdded):
            return self._add(record)
        job = self.jobs.get(record.job_id)
        if record.hidden:
            return ""
        if job is None:
            self._note_early(record)
            return ""
        if isinstance(record, workq.JobFinished):
            if job.state in _FINISHED:
                return "Duplicate result"
            is_complete = record.command == workq.Command.COMPLETE
            job.state = fold.JobState.COMPLETED if is_complete else fold.JobState.FAILED
        elif record.command == workq.Command.START_ATTEMPT:
            return _start(job)
        elif record.command == workq.Command.TIMEOUT_ATTEMPT:
            if job.state == fold.JobState.LEASED:
                is_last = 0 < job.max_attempts <= job.attempts
                job.state = fold.JobState.FAILED if is_last else fold.JobState.PENDING
            elif job.state not in _FINISHED:
                # It is in its queue, and a second insertion can break the links of the list.
                return "queued twice"
        else:
            del self.jobs[record.job_id]
        return ""

    def _note_early(self, record: workq.JobEvent | workq.JobFinished) -> None:
        if record.command == workq.Command.EXPIRE:  # the end of a run, which has no add
            self._early.discard(record.job_id)
        elif record.job_id not in self._expired:
            self._early.add(record.job_id)

    def _add(self, added: workq.JobAdded) -> str:
        if fold.expires_ns(fold.FoldedJob(added)) < self._now_ns:
            self._expired.add(added.job_id)
            return ""
        if added.job_id in self._early:
            return "added after its other records"
        if unusable := next(fold.unusable_values(added), ""):
            return f"Invalid {unusable}"
        if added.job_id in self.jobs:
            return "Duplicate job"
        self.jobs[added.job_id] = _Job(added.max_attempts, added.max_fails)
        return ""


def _start(job: _Job) -> str:
    if job.state == fold.JobState.LEASED:
        return "Job already leased"
    if job.state in _FINISHED:
        return "Job already processed"
    if job.attempts >= (job.max_attempts or MAX_ATTEMPTS):
        return "Max attempts reached"
    job.state = fold.JobState.LEASED
    job.attempts += 1
    return ""


def hand_over_workq(
    disk: Disk,
    clock: Clock,
    directory: str,
    facts: handover.Facts,
    holders: Holders | None,
    *,
    accept: bool,
) -> handover.HandedOver:
    """``accept``: a job with more attempts than the original can count keeps as many as it can."""
    replay = OriginalReplay(clock.now_ns())
    changes: list[str] = []
    findings: list[handover.Finding] = []
    with WorkqLog.open(disk, clock, directory, on_record=replay.take) as log:
        if not log.recovery.clean:
            changes.append(handover.REPAIRED)
        if replay.refused:
            records = _histories(log, replay, accept=accept)
            segments = workq_files(disk, directory)
            free = ask(holders, directory, "", segments)
            if records and free.count < len(segments):
                findings.append(handover.unread(disk, directory))
            elif records:
                _rewrite(disk, directory, segments, records)
                free.dropped(segments)
                changes.append(handover.REWRITTEN)
                replay = OriginalReplay(clock.now_ns())
                for segment in workq_files(disk, directory):
                    for entry in read_segment(disk, segment, None):
                        replay.take(entry.record)
    findings += _findings(replay, facts, {*handover.keys_of(facts, "queue-pause")})
    return handover.HandedOver(tuple(changes), tuple(findings))


def _histories(
    log: WorkqLog, replay: OriginalReplay, *, accept: bool
) -> dict[bytes, tuple[workq.Record, ...]]:
    """Return, for each job that is refused and need not be, records that the original accepts."""
    states: dict[bytes, fold.State] = {}
    for entry in log.entries():
        job_id = entry.record.job_id
        if replay.refused.get(job_id, NEWER) != NEWER:
            states[job_id] = fold.apply(states.get(job_id), entry.record)
    histories = {}
    for job_id, state in states.items():
        job = fold.without_orphans(state)
        if job is not None:
            # A timeout that is still to come would have been written by a server that has ended.
            job = replace(job, owed_timeouts=0)
        records = fold.snapshot(job)
        if accept and job is not None and not _is_accepted(records):
            records = fold.snapshot(_with_fewer_attempts(job))
        if _is_accepted(records):
            histories[job_id] = records
    return histories


def _is_accepted(records: Iterable[workq.Record]) -> bool:
    replay = OriginalReplay(now_ns=0)
    for record in records:
        replay.take(record)
    return not replay.refused


def _with_fewer_attempts(job: fold.FoldedJob) -> fold.FoldedJob:
    """A job in its queue gets one attempt more; a lease may be the last one."""
    limit = job.added.max_attempts or MAX_ATTEMPTS
    if job.state == fold.JobState.PENDING:
        limit -= 1
    return replace(job, attempts=min(job.attempts, limit))


def _rewrite(
    disk: Disk,
    directory: str,
    segments: list[str],
    histories: dict[bytes, tuple[workq.Record, ...]],
) -> None:
    before = publication.file_identities(disk, segments)
    renames = {}
    for segment in segments:
        last = histories if segment == segments[-1] else {}
        staged = segment + REWRITE_SUFFIX
        publication.write_whole(disk, staged, _pieces(disk, segment, histories, last))
        publication.note_replacement(disk, before, staged, segment)
        renames[posixpath.basename(staged)] = posixpath.basename(segment)
    publication.publish(disk, publication.journal_path(directory), publication.Publication(renames))
    for segment in segments:
        remove_index(disk, segment)


def _pieces(
    disk: Disk,
    segment: str,
    dropped: dict[bytes, tuple[workq.Record, ...]],
    appended: dict[bytes, tuple[workq.Record, ...]],
) -> Iterator[Buffer]:
    yield workq.HEADER
    data = disk.view(segment)
    for entry in read_segment(disk, segment, None):
        if entry.record.job_id not in dropped:
            yield data[entry.offset : entry.end]
    for records in appended.values():
        yield from map(workq.CODEC.encode, records)


def _findings(
    replay: OriginalReplay, facts: handover.Facts, paused: set[str]
) -> Iterator[handover.Finding]:
    by_reason: dict[str, list[bytes]] = {}
    for job_id, reason in replay.refused.items():
        by_reason.setdefault(reason, []).append(job_id)
    for reason, ids in sorted(by_reason.items()):
        yield from handover.finding(
            "refused",
            f"workq does not start because of jobs with the error {reason!r}",
            map(id_text, ids),
            refuses=True,
        )
    unfinished = {key: job for key, job in replay.jobs.items() if job.state not in _FINISHED}
    yield from handover.finding("paused", "jobs of paused queues are given out", paused)
    yield from handover.finding(
        "parked",
        "jobs that wait for a time, an event or other jobs run at once, with all their steps",
        (id_text(key) for key in unfinished.keys() & replay.parked),
    )
    yield from handover.finding(
        "limits",
        "limits of queues do not hold",
        handover.keys_of(facts, "queue-limits"),
    )
    yield from handover.finding(
        "retries",
        "the first fail of jobs with retries is final",
        (id_text(key) for key, job in unfinished.items() if workq.max_fails_of(job.max_fails) > 1),
    )
    options = {
        record.job: record.body for record in facts.values() if isinstance(record, JobOptionsSet)
    }
    known, names = set(map(id_text, replay.jobs)), set(map(id_text, unfinished))
    yield from handover.finding(
        "delays",
        "retries of jobs are not delayed",
        {
            *(id_text(key) for key, job in unfinished.items() if workq.delay_ms_of(job.max_fails)),
            *(job for job in names & options.keys() if options[job].get("ready_ns")),
        },
    )
    yield from handover.finding(
        "keys",
        "jobs of one key run side by side",
        (job for job in names & options.keys() if options[job].get("key")),
    )
    yield from handover.finding(
        "children",
        "jobs that wait for others do not exist there",
        (job for job, body in options.items() if body.get("after") and job not in known),
    )
