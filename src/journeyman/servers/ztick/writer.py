"""The single writer of the schedule: every command passes through here, one batch after another.

    clients, HTTP --commands--> +--------+ --records--> log     one write and one sync a batch
    ticker       --Due--------> | writer | --StartRun-> runs    only when durable
    runs         --Finished---> +--------+ --replies--> clients, rendered by each in its own way

How batches are made, written and taken back is in group_commit.py. When a batch was taken back,
clients that wanted to change something get ``ERROR internal``.

Not here: what commands do (the engine), how answers look (the clients render them).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

from journeyman.clock import Clock
from journeyman.config import ALL_NAMESPACES
from journeyman.engines.ztick import messages
from journeyman.engines.ztick.engine import ZtickEngine
from journeyman.errors import JourneymanError
from journeyman.formats.ledger import Record as LedgerRecord
from journeyman.formats.ztick import CODEC, JobRemoved, JobSet, Record
from journeyman.logs.ledger import MarkWriter
from journeyman.logs.ztick.log import ZtickLog
from journeyman.protocols.ztick import commands
from journeyman.protocols.ztick.parser import LINE_LIMIT_BYTES
from journeyman.servers.core.contract import Batch, Dialect, Recorder, WriteWait
from journeyman.servers.core.group_commit import MAX_BATCH, MAX_BATCH_BYTES, QUICK_BYTES

Request: TypeAlias = commands.Command | commands.ReplyOnly

_CHANGES = (
    commands.Set,
    commands.SetMany,
    commands.Remove,
    commands.SetRule,
    commands.RemoveRule,
    commands.SetTimetable,
    commands.PauseTimetable,
    commands.ResumeTimetable,
    commands.RemoveTimetable,
    commands.RunTimetable,
    commands.BackfillTimetable,
)
_WITH_RUNNER = (commands.SetRule, commands.SetTimetable)
_OWN = (messages.TriggerDue, messages.RunFinished, messages.Resume, messages.RemoveEnded)
RECORD_BYTES = 32  # the size of a job's record, beside its identifier
# The weight of a SET that came with others: as many to a batch.
SET_WEIGHT = MAX_BATCH_BYTES // MAX_BATCH
_SEEN_TO = (messages.TriggerDue, messages.RemoveEnded)  # by the clock, again and again


class ZtickOwner(Protocol):
    """The schedule, as its dialect sees it."""

    def start_runs(self, effects: Sequence[messages.StartRun]) -> None:
        """They are durable."""
        ...

    def on_reply(self, reply: messages.Reply) -> None:
        """Take the reply to a command of the server itself."""
        ...


class ZtickRecorder(Recorder):
    """The log, as the writer sees it; and when it was written, for the ledger."""

    def __init__(
        self, log: ZtickLog, marks: MarkWriter | None = None, *, waits: bool = True
    ) -> None:
        """``waits`` no: neither the log nor the ledger is synced before an answer."""
        self._waits = waits
        self._append = log.appender.append
        self._in_blocks = log.appender.in_blocks
        self._is_busy = log.appender.is_busy
        self._marks = marks

    def wait_of(self, records: Sequence[Record | bytes]) -> WriteWait:
        is_little = sum(map(_size_of, records)) <= QUICK_BYTES
        return WriteWait.SYNC if is_little and not self._is_busy() else WriteWait.MORE

    def is_urgent(self, ledger: Sequence[LedgerRecord]) -> bool:  # noqa: ARG002 - all or none
        """``Resume`` repairs whatever the log and the ledger do not agree on."""
        return self._waits

    def write(self, records: Sequence[Record | bytes]) -> None:
        # Pieces of a block, not one per record: where in the log a record stands is not needed.
        encode = CODEC.encode
        encoded = [each if isinstance(each, bytes) else encode(each) for each in records]
        self._append([b"".join(block) for block in self._in_blocks(encoded)])
        if self._marks is not None:
            self._marks.note()


def _size_of(record: Record | bytes) -> int:
    """About how many bytes a record takes in the log; a rule may be as long as a line."""
    if isinstance(record, bytes):
        return len(record)
    is_job = isinstance(record, JobSet | JobRemoved)
    return RECORD_BYTES + len(record.identifier) if is_job else LINE_LIMIT_BYTES


class ZtickDialect(Dialect):
    """How the commands of the schedule are decided."""

    due = messages.TriggerDue()
    codec = CODEC

    def __init__(
        self,
        schedule: ZtickEngine,
        clock: Clock,
        owner: ZtickOwner,
        problem_of: Callable[[commands.SetRule | commands.SetTimetable], str] = lambda _: "",
    ) -> None:
        """``problem_of`` says why what a command sets could never run here, or nothing."""
        super().__init__(schedule)
        self._schedule = schedule
        self._clock = clock
        self._owner = owner
        self._problem_of = problem_of

    def decide(self, batch: Batch) -> None:
        decide, now_ns = self._schedule.decide, self._clock.now_ns()
        records, effects, outcomes = batch.records, batch.effects, batch.outcomes
        batch.begun_ns = now_ns
        rows: list[Any] = []  # the SETs to be decided together, maybe of several clients
        for client, request in batch.requests:
            is_set = type(request) is commands.SetMany
            if is_set and client.namespace == ALL_NAMESPACES:
                rows += request.rows
                batch.answers[client].append(client.render(request, messages.DONE))
                outcomes.append(messages.DONE)
                continue
            if rows:
                self._set_all(batch, rows)
                rows = []
            if client is None:
                if type(request) is messages.TriggerDue:
                    self.writer.due_waits = False
                outcome = decide(request, now_ns)
                if outcome.reply is not None:
                    batch.replies.append(outcome.reply)
            else:
                if isinstance(request, commands.REPLY_ONLY):
                    batch.answers[client].append(client.render(request, None))
                    outcomes.append(None)
                    continue
                if type(request) in _WITH_RUNNER and (denied := client.denies(request)) is not None:
                    batch.answers[client].append(client.render(denied, None))
                    outcomes.append(messages.OUT_OF_SCOPE)
                    continue
                if type(request) in _WITH_RUNNER and (problem := self._problem_of(request)):
                    refused = messages.TimetableRefused(problem)
                    batch.answers[client].append(client.render(request, refused))
                    outcomes.append(refused)
                    continue
                if is_set:
                    self._decide_apart(batch, client, request)
                    continue
                outcome = decide(request, now_ns, client.namespace)
                batch.answers[client].append(client.render(request, outcome.reply))
            outcomes.append(outcome.reply)
            if outcome.records:
                records += outcome.records
            if outcome.effects:
                effects += outcome.effects
        if rows:
            self._set_all(batch, rows)

    def _set_all(self, batch: Batch, rows: list[Any]) -> None:
        outcome = self._schedule.decide(commands.SetMany(rows), batch.begun_ns)
        batch.records += outcome.records
        batch.effects += outcome.effects

    def _decide_apart(self, batch: Batch, client: Any, many: commands.SetMany) -> None:
        """Some may be outside the namespace of the client."""
        answers = []
        for each in many.one_by_one():
            outcome = self._schedule.decide(each, batch.begun_ns, client.namespace)
            batch.records += outcome.records
            answers.append(client.render(each, outcome.reply))
        batch.answers[client].append(b"".join(answers))
        batch.outcomes.append(outcome.reply)

    def weigh(self, requests: Sequence[Any]) -> int:
        return sum(
            [len(each.rows) * SET_WEIGHT for each in requests if type(each) is commands.SetMany]
        )

    def carry_out(self, batch: Batch) -> None:
        if batch.effects:
            self._owner.start_runs(batch.effects)
        for reply in batch.replies:
            self._owner.on_reply(reply)

    def decide_again(self, batch: Batch, error: JourneymanError) -> tuple[Batch, list[Any]]:
        again = Batch(batch.requests)
        outcomes: list[Any] = [error] * len(batch.requests)
        now_ns = self._clock.now_ns()
        for index, (client, request) in enumerate(batch.requests):
            if client is None:
                if not isinstance(request, _SEEN_TO):
                    self.writer.repeat_later(request)
            elif isinstance(request, _CHANGES):
                again.answers[client].append(client.render_failure(request))
            elif isinstance(request, commands.REPLY_ONLY):
                outcomes[index] = None
                again.answers[client].append(client.render(request, None))
            else:
                assert not isinstance(request, _OWN)
                reply = self._schedule.decide(request, now_ns, client.namespace).reply
                outcomes[index] = reply
                again.answers[client].append(client.render(request, reply))
        return again, outcomes
