"""The work queue over HTTP, version 1: what workers and the people who run them do."""

from __future__ import annotations

import asyncio
import hashlib
import re
import uuid
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import msgspec
from msgspec import structs

from journeyman.engines.workq.browsing import BrowseJobs, BrowseQueues, CountFacets, QueuesFound
from journeyman.engines.workq.packed import is_moment_key, moment_of
from journeyman.engines.workq.workers import BrowseWorkers, WorkersFound
from journeyman.protocols.workq import commands, replies
from journeyman.protocols.workq.readers import (
    is_version_4,
    read_id,
    read_name,
    read_step_name,
    read_wait,
)
from journeyman.protocols.workq.salts import salted_id
from journeyman.servers.core.helper_process import HelperFailed
from journeyman.servers.http.fields import (
    cursor_of,
    moment_of_query,
    read_bytes,
    read_cursor,
    read_moment,
)
from journeyman.servers.http.problems import ApiError
from journeyman.servers.http.routes import KEY_OF_ANOTHER_BODY, Route, RouteCall
from journeyman.servers.http.v1 import values
from journeyman.servers.http.v1.backend import HttpBackend
from journeyman.servers.series.answers import Wanted
from journeyman.units import DAY_S, NS_PER_S

ASKED_AT_ONCE = 200  # requests that share a batch and its sync
_FINISH_ERRORS = (404, 409)
_MAX_PAGE_BYTES: Final = 1024 * 1024  # values of a page of steps; one alone may be larger
_JOB_ID: Final = re.compile(values.JOB_ID)
NAMES: Final = {"job": values.JOB_ID, "queue": values.QUEUE_NAME, "event": values.STEP_NAME}
_route = partial(Route, tag="work queue", names=NAMES)

Totals = list[tuple[int, int]]


class WorkRoutes:
    def __init__(self, backend: HttpBackend) -> None:
        self._backend = backend
        self.rates = QueueRates(self._totals)

    def _totals(self) -> Totals:
        work = self._backend.work
        return [] if work is None else work.figures.queue_totals()

    def routes(self) -> list[Route]:
        jobs, queues = "/v1/work/jobs", "/v1/work/queues"
        return [
            _route("GET", jobs, self.jobs, "Jobs, newest first", values.WorkJobs,
                   query=values.WorkJobsQuery, errors=(404, 422)),
            _route("GET", "/v1/work/facets", self.facets, "Counts of jobs to narrow a search by",
                   values.WorkFacets, query=values.FacetsQuery, errors=(404,)),
            _route("POST", jobs, self.add, "Add a job", values.Added, body=values.AddJob,
                   status=201, errors=(409, 422), is_traffic=True),
            _route("GET", f"{jobs}/{{job}}", self.job, "A job", replies.JobView,
                   query=values.MomentQuery, errors=(404, 422)),
            _route("DELETE", f"{jobs}/{{job}}", self.delete, "Delete a job", errors=(404,)),
            _route("POST", f"{jobs}/{{job}}/complete", self.complete, "Complete a job",
                   body=values.FinishBody, errors=(*_FINISH_ERRORS, 422), is_traffic=True),
            _route("POST", f"{jobs}/{{job}}/fail", self.fail, "Fail a job",
                   body=values.FailBody, errors=(*_FINISH_ERRORS, 422), is_traffic=True),
            _route("POST", f"{jobs}/{{job}}/touch", self.touch, "Prolong a lease",
                   body=values.TouchBody, errors=(*_FINISH_ERRORS, 422), is_traffic=True),
            _route("POST", f"{jobs}/{{job}}/requeue", self.requeue, "Requeue a dead job",
                   errors=(404, 409, 422)),
            _route("POST", f"{jobs}/{{job}}/progress", self.progress,
                   "Say how far a leased job has come", body=values.ProgressBody,
                   errors=_FINISH_ERRORS, is_traffic=True),
            _route("POST", f"{jobs}/{{job}}/steps", self.record_step,
                   "Record a step of a leased job", body=values.StepBody,
                   errors=(*_FINISH_ERRORS, 422), is_traffic=True),
            _route("GET", f"{jobs}/{{job}}/steps", self.steps, "The recorded steps of a job",
                   values.JobSteps, query=values.StepsQuery, errors=(*_FINISH_ERRORS, 422)),
            _route("POST", f"{jobs}/{{job}}/fork", self.fork,
                   "Add a job that goes on from a step of this one", values.Added,
                   body=values.ForkBody, status=201, errors=(404, 409, 422)),
            _route("POST", f"{jobs}/{{job}}/park", self.park,
                   "Let a leased job wait without a lease", values.JobSteps,
                   body=values.ParkBody, errors=(*_FINISH_ERRORS, 422), is_traffic=True),
            _route("PUT", "/v1/work/events/{event}", self.emit, "Let an event happen",
                   values.EventAnswer, body=values.EventBody, errors=(409, 422)),
            _route("GET", "/v1/work/events/{event}", self.event, "An event that has happened",
                   values.EventAnswer, query=values.MomentQuery, errors=(404, 422)),
            _route("POST", f"{jobs}/{{job}}/cancel", self.cancel, "Cancel a job",
                   errors=_FINISH_ERRORS),
            _route("GET", f"{jobs}/{{job}}/result", self.result, "The result of a job",
                   values.ResultAnswer, query=values.ResultQuery, errors=(404, 408), waits=True),
            _route("POST", "/v1/work/lease", self.lease, "Lease a job", values.LeaseAnswer,
                   body=values.LeaseBody, errors=(422,), waits=True, is_traffic=True),
            _route("POST", "/v1/work/run", self.run, "Have a job done and wait for its result",
                   values.ResultAnswer, body=values.RunBody, errors=(404, 408, 409, 422),
                   waits=True, is_traffic=True),
            _route("POST", "/v1/work/requeue", self.requeue_many, "Requeue dead jobs",
                   values.BulkAnswer, body=values.BulkBody, errors=(422,)),
            _route("POST", "/v1/work/cancel", self.cancel_many, "Cancel jobs",
                   values.BulkAnswer, body=values.BulkBody, errors=(422,)),
            _route("POST", "/v1/work/delete", self.delete_many, "Delete jobs",
                   values.BulkAnswer, body=values.BulkBody, errors=(422,)),
            _route("GET", "/v1/work/workers", self.workers, "Workers by name", values.Workers,
                   query=values.CursorQuery),
            _route("GET", queues, self.queues, "Queues by name", values.WorkQueues,
                   query=values.NamesAtQuery, errors=(404, 422)),
            _route("GET", f"{queues}/{{queue}}", self.queue, "A queue", replies.QueueView,
                   query=values.MomentQuery, errors=(404, 422)),
            _route("PUT", f"{queues}/{{queue}}/paused", self.pause, "Pause or resume a queue",
                   replies.QueueView, body=values.PausedBody),
            _route("PUT", f"{queues}/{{queue}}/limits", self.limit, "Limit a queue",
                   replies.QueueView, body=values.QueueLimitsBody, errors=(409,)),
        ]  # fmt: skip

    # -- looking --

    async def jobs(self, call: RouteCall) -> values.WorkJobs:
        query: values.WorkJobsQuery = call.query
        since_ns = read_moment(query.since, "since") if query.since else 0
        found = await self._backend.browse_jobs(
            call,
            BrowseJobs(
                query.queue,
                query.state or "",
                query.text,
                query.error,
                query.limit,
                read_cursor(query.cursor, is_moment_key),
                since_ns=since_ns,
                task=query.task,
                order="" if query.sort == "-created" else query.sort[1:],
            ),
            moment_of_query(query.at),
        )
        until_ns = None if found.after is None else moment_of(found.after)
        return values.WorkJobs(list(found.jobs), cursor_of(found.after), found.looked, until_ns)

    async def facets(self, call: RouteCall) -> values.WorkFacets:
        query: values.FacetsQuery = call.query
        queue, at_ns = query.queue, moment_of_query(query.at)
        counting = CountFacets(queue, query.state or "")
        counted = await self._backend.count_facets(call, counting, at_ns)
        workers = Counter[str]()
        if at_ns is None:
            found: WorkersFound = await self._backend.ask_work(call, BrowseWorkers(limit=500))
            for worker in found.workers:
                workers[worker.name] += sum(not queue or job.queue == queue for job in worker.jobs)
        tasks, errors = await self._lately(call, queue, at_ns)
        return values.WorkFacets(*counted, dict(+workers), tasks, errors)

    async def _lately(
        self, call: RouteCall, queue: str, at_ns: int | None
    ) -> tuple[dict[str, int], dict[str, int]] | tuple[None, None]:
        """Attempts by task and failures by class of error, of the last day."""
        backend = self._backend
        if backend.series is None:
            return None, None
        to_s = (at_ns or backend.clock.now_ns()) // NS_PER_S + 1
        span = (call.prefix, to_s - DAY_S, to_s, 0)
        asked = Wanted("queue", queue, *span), Wanted("task", "", *span, queue)
        try:
            found: tuple[dict[str, int], dict[str, int]] = await backend.ask_series(
                call, "get_lately", *asked
            )
        except HelperFailed:
            return None, None
        return found

    async def job(self, call: RouteCall) -> replies.JobView:
        return await self._backend.see_job(call, _id(call), moment_of_query(call.query.at))

    async def queues(self, call: RouteCall) -> values.WorkQueues:
        query: values.NamesAtQuery = call.query
        at_ns = moment_of_query(query.at)
        after = (read_cursor(query.cursor) or b"").decode(errors="surrogateescape")
        prefix = call.narrowed(query.prefix)
        if prefix is None:
            return values.WorkQueues([], None)
        asked = BrowseQueues(after, query.limit, prefix)
        found = await self._backend.ask_work(call, asked, at_ns)
        last = found.queues[-1].name if found.has_more else None
        shown = self._with_rates(found, at_ns)
        return values.WorkQueues(
            shown, None if last is None else cursor_of(last.encode(errors="surrogateescape"))
        )

    async def workers(self, call: RouteCall) -> values.Workers:
        query: values.CursorQuery = call.query
        after = (read_cursor(query.cursor) or b"").decode(errors="replace")
        found = await self._backend.ask_work(call, BrowseWorkers(after, query.limit))
        last = found.workers[-1].name if found.has_more else None
        return values.Workers(
            list(found.workers), None if last is None else cursor_of(last.encode())
        )

    async def queue(self, call: RouteCall) -> replies.QueueView:
        name, at_ns = call.path["queue"], moment_of_query(call.query.at)
        found = await self._backend.ask_work(call, BrowseQueues(name=name), at_ns)
        if not found.queues:
            raise ApiError(404, f"there is no queue {name!r}", "queue_not_found")
        return self._with_rates(found, at_ns)[0]

    def _with_rates(self, page: QueuesFound, at_ns: int | None = None) -> list[replies.QueueView]:
        """No log says how many clients waited in the past, nor what the process had counted."""
        if at_ns is not None:
            return [structs.replace(each, added=None, started=None) for each in page.queues]
        shown = []
        for queue, number in zip(page.queues, page.numbers, strict=True):
            added, started = self.rates.rates_of(number) or (None, None)
            shown.append(structs.replace(queue, added_per_s=added, started_per_s=started))
        return shown

    # -- changing --

    async def add(self, call: RouteCall) -> values.Added:
        """Add a job. With an Idempotency-Key and no id, the key decides the id: a repeat after a
        restart finds the job there and says so."""
        body: values.AddJob = call.body
        key = call.request.headers.get("Idempotency-Key")
        job_id = self._new_id(call, body.id, key)
        payload = _payload(body.payload, body.payload_base64, "payload")
        options = _options(body, job_id, payload)
        common = (body.priority, body.max_attempts, body.max_fails, body.retry_delay_ms, options)
        command: Any = commands.Add(job_id, body.queue, body.ttr_ms, body.ttl_ms, payload, *common)
        if body.at is not None:
            time_ns = read_moment(body.at, "at")
            command = commands.ScheduleJob(
                job_id, body.queue, body.ttr_ms, body.ttl_ms, time_ns, payload, *common
            )
        try:
            await self._backend.ask_work(call, command)
        except ApiError as error:
            if error.code != "duplicate_job" or body.id is not None or key is None:
                raise
            await self._check_same(call, command)
            return values.Added(replies.id_text(job_id), False)
        return values.Added(replies.id_text(job_id), True)

    async def _check_same(
        self, call: RouteCall, command: commands.Add | commands.ScheduleJob
    ) -> None:
        """ApiError if the job that a key stands for was added with another body."""
        found = (await self._backend.ask_work(call, commands.InspectJob(command.job_id))).jobs[0]
        asked = (
            *(command.name, command.payload, command.ttr_ms, command.ttl_ms, command.priority),
            *(command.max_attempts, command.max_fails, command.retry_delay_ms),
            command.time_ns if isinstance(command, commands.ScheduleJob) else None,
        )
        there = (
            *(found.queue, bytes(found.payload), found.ttr_ms, found.ttl_ms, found.priority),
            *(found.max_attempts, found.max_fails, found.retry_delay_ms, found.scheduled_ns),
        )
        key = "" if command.options is None else command.options.key
        # The key of a job that has ended may be forgotten.
        is_same_key = key == found.key or found.state in replies.FINISHED
        if asked != there or not is_same_key:
            raise ApiError(422, KEY_OF_ANOTHER_BODY, "idempotency_mismatch")

    def _new_id(self, call: RouteCall, given_id: str | None, key: str | None) -> bytes:
        if given_id is not None:
            job_id = parse_id(given_id)
            if not is_version_4(job_id):
                raise ApiError(400, "the id of a new job is a UUID of version 4", "invalid_id")
            return job_id
        if key is None:
            return uuid.uuid4().bytes
        named = f"{call.who}\0{key}".encode(errors="surrogateescape")
        digest = hashlib.blake2b(named, digest_size=16).digest()
        salt = self._backend.access.salt_of(call.prefix)
        return salted_id(uuid.UUID(bytes=digest, version=4).bytes, salt)

    def check_body(self, body: values.AddJob | values.ForkBody) -> None:
        """Check what the types of a body that came as JSON have checked already."""
        try:
            msgspec.convert(msgspec.to_builtins(body), type(body))
        except msgspec.ValidationError as error:
            raise ApiError(400, str(error), "invalid_body") from None

    async def lease(self, call: RouteCall) -> values.LeaseAnswer:
        body: values.LeaseBody = call.body
        asked = commands.Lease(tuple(body.queues), body.wait_ms, body.max, body.worker)
        reply = await self._backend.ask_work(call, asked)
        if not isinstance(reply, replies.LeasedJobs):
            return values.LeaseAnswer(None, [])
        jobs = [
            values.LeasedJob(
                job.job_id,
                job.name,
                job.ttr_ms,
                job.attempt,
                job.fails,
                job.max_fails,
                bytes(job.payload),
                job.given_back,
            )
            for job in reply.jobs
        ]
        return values.LeaseAnswer(jobs[0], jobs)

    async def run(self, call: RouteCall) -> values.ResultAnswer:
        """Run a job as ``run`` on the port does: it is not recorded, and dropped when its client
        has left."""
        body: values.RunBody = call.body
        payload = _payload(body.payload, body.payload_base64, "payload")
        run = commands.RunJob(
            self._new_id(call, body.id, None), body.queue, body.ttr_ms, body.wait_ms, payload,
            body.priority,
        )  # fmt: skip
        return _finished(await self._backend.ask_work(call, run))

    async def complete(self, call: RouteCall) -> None:
        body: values.FinishBody = call.body
        done = commands.Complete(_id(call), _result(body), body.attempt or 0)
        await self._backend.ask_work(call, done)

    async def fail(self, call: RouteCall) -> None:
        body: values.FailBody = call.body
        if body.final and body.release:
            raise ApiError(
                400, "a job either ends (final) or is given back (release)", "invalid_body"
            )
        failed = commands.Fail(
            _id(call), _result(body), body.delay_ms, body.attempt or 0, body.final, body.release
        )
        await self._backend.ask_work(call, failed)

    async def touch(self, call: RouteCall) -> None:
        await self._backend.ask_work(call, commands.Touch(_id(call), call.body.ttr_ms))

    async def delete(self, call: RouteCall) -> None:
        await self._backend.ask_work(call, commands.Delete(_id(call)))

    async def progress(self, call: RouteCall) -> None:
        body: values.ProgressBody = call.body
        notes = commands.WorkerNotes(body.done, body.total, body.note, tuple(body.log))
        await self._backend.ask_work(call, commands.NoteProgress(_id(call), notes))

    async def record_step(self, call: RouteCall) -> None:
        body: values.StepBody = call.body
        if read_step_name(body.name.encode(errors="replace")) is None:
            raise ApiError(400, f"not a name of a step: {body.name!r}", "invalid_body")
        value = _step_value(body)
        step = commands.RecordStep(_id(call), body.name, body.number, value, body.attempt)
        await self._backend.ask_work(call, step)

    async def steps(self, call: RouteCall) -> values.JobSteps:
        query: values.StepsQuery = call.query
        asked = commands.InspectSteps(_id(call), query.attempt)
        reply = await self._backend.ask_work(call, asked, moment_of_query(query.at))
        # Steps are only ever added at the end, so a place among them stays what it was.
        skipped = int.from_bytes((read_cursor(query.cursor) or b"")[:4])
        page: list[values.JobStep] = []
        size = 0
        for step in reply.steps[skipped : skipped + query.limit]:
            size += len(step.value)
            if page and size > _MAX_PAGE_BYTES:
                break
            page.append(values.JobStep(*step))
        end = skipped + len(page)
        following = end.to_bytes(4) if page and end < len(reply.steps) else None
        return values.JobSteps(page, cursor_of(following))

    async def fork(self, call: RouteCall) -> values.Added:
        """A repeat with the same Idempotency-Key, or the same id, finds the new job there."""
        body: values.ForkBody = call.body
        if read_step_name(body.step.encode(errors="replace")) is None:
            raise ApiError(400, f"not a name of a step: {body.step!r}", "invalid_body")
        new_id = self._new_id(call, body.id, call.request.headers.get("Idempotency-Key"))
        asked = commands.Fork(_id(call), new_id, body.step, body.number)
        await self._backend.ask_work(call, asked)
        return values.Added(replies.id_text(new_id), True)

    async def park(self, call: RouteCall) -> values.JobSteps:
        """No steps: it waits; else the step that the wait has come to already."""
        body: values.ParkBody = call.body
        found = read_wait(msgspec.json.encode(body.wait))
        if found is None:
            raise ApiError(400, "wait for a time, an event or jobs", "invalid_body")
        asked = commands.Park(_id(call), found, body.attempt)
        reply = await self._backend.ask_work(call, asked)
        steps = reply.steps if isinstance(reply, replies.StepList) else ()
        return values.JobSteps([values.JobStep(*step) for step in steps])

    async def emit(self, call: RouteCall) -> values.EventAnswer:
        await self._backend.ask_work(call, commands.Emit(_event(call), _step_value(call.body)))
        return await self.event(call)

    async def event(self, call: RouteCall) -> values.EventAnswer:
        at = moment_of_query(call.query.at) if isinstance(call.query, values.MomentQuery) else None
        reply = await self._backend.ask_work(call, commands.InspectEvent(_event(call)), at)
        (found,) = reply.steps
        return values.EventAnswer(found.name, found.value, found.done_ns)

    async def cancel(self, call: RouteCall) -> None:
        await self._backend.ask_work(call, commands.Cancel(_id(call)))

    async def requeue(self, call: RouteCall) -> None:
        await self._backend.ask_work(call, commands.Requeue(_id(call)))

    async def result(self, call: RouteCall) -> values.ResultAnswer:
        asked = commands.AwaitResult(_id(call), call.query.wait_ms)
        return _finished(await self._backend.ask_work(call, asked))

    async def pause(self, call: RouteCall) -> replies.QueueView:
        name = read_queue(call.path["queue"])
        change = commands.PauseQueue(name) if call.body.paused else commands.ResumeQueue(name)
        await self._backend.ask_work(call, change)
        return await self._queue_now(call, name)

    async def limit(self, call: RouteCall) -> replies.QueueView:
        name = read_queue(call.path["queue"])
        given = {
            field: value
            for field in commands.Limits.__struct_fields__
            if (value := getattr(call.body, field)) is not msgspec.UNSET
        }
        for pair in (("rate", "per_ms"), ("key_rate", "key_per_ms")):
            if pair[0] not in given and pair[1] not in given:
                continue
            rate, period = (given.setdefault(field, 0) for field in pair)
            if bool(rate) != bool(period):
                raise ApiError(400, f"{pair[0]} and {pair[1]} go together", "invalid_body")
        if given.get("fair") is False:
            if given.setdefault("weights", {}):
                raise ApiError(400, "weights are of a fair queue", "invalid_body")
        elif given.get("weights"):
            given["fair"] = True
        kept = frozenset(commands.Limits.__struct_fields__) - given.keys()
        await self._backend.ask_work(call, commands.SetLimits(name, commands.Limits(**given), kept))
        return await self._queue_now(call, name)

    async def _queue_now(self, call: RouteCall, name: str) -> replies.QueueView:
        found = await self._backend.ask_work(call, BrowseQueues(name=name))
        if not found.queues:  # it was resumed, and never was there
            return replies.QueueView(name)
        return self._with_rates(found)[0]

    # -- many at once --

    async def requeue_many(self, call: RouteCall) -> values.BulkAnswer:
        return await self._for_every_id(call, commands.Requeue, "dead")

    async def cancel_many(self, call: RouteCall) -> values.BulkAnswer:
        return await self._for_every_id(call, commands.Cancel, "")

    async def delete_many(self, call: RouteCall) -> values.BulkAnswer:
        return await self._for_every_id(call, commands.Delete, "")

    async def _for_every_id(self, call: RouteCall, command: Any, state: str) -> values.BulkAnswer:
        body: values.BulkBody = call.body
        ids = [parse_id(text) for text in body.ids]
        if not ids and not body.queue:
            raise ApiError(400, "name ids, or a queue", "invalid_body")
        if not ids:
            state = state or body.state or ""
            asked = BrowseJobs(body.queue, state, error=body.error, limit=body.limit)
            ids = [job.job_id for job in (await self._backend.browse_jobs(call, asked)).jobs]
        refused = []
        for begin in range(0, len(ids), ASKED_AT_ONCE):
            some = ids[begin : begin + ASKED_AT_ONCE]
            asked_for = (self._backend.ask_work(call, command(each)) for each in some)
            answers = await asyncio.gather(*asked_for, return_exceptions=True)
            for job_id, reply in zip(some, answers, strict=True):
                if isinstance(reply, ApiError) and reply.status != 503:
                    refused.append(replies.id_text(job_id))
                elif isinstance(reply, BaseException):
                    raise reply
        return values.BulkAnswer(len(ids) - len(refused), refused)


def _finished(reply: Any) -> values.ResultAnswer:
    if not isinstance(reply, replies.Finished):
        raise ApiError(408, "the job is not finished", "not_finished")
    return values.ResultAnswer(*reply)


def _options(body: values.AddJob, job_id: bytes, payload: bytes) -> commands.AddOptions | None:
    """Check of fields what ``protocols.workq.readers.add`` checks of flags."""
    after = tuple(dict.fromkeys(map(parse_id, body.after)))
    wrong = ""
    if body.unique_for_ms and body.replace is None:
        wrong = "unique_for_ms goes with replace"
    elif body.even_failed and not after:
        wrong = "even_failed goes with after"
    elif after and body.at is not None:
        wrong = "a job waits for a time (at) or for jobs (after)"
    elif job_id in after:
        wrong = "a job cannot wait for itself"
    elif body.unless is not None and body.replace != "unstarted":
        wrong = "unless goes with replace unstarted"
    elif after and body.replace == "unstarted":
        wrong = "a job that replaces one that has not begun waits for no others"
    elif (after or body.replace == "unstarted") and len(payload) > commands.MAX_CHILD_BYTES:
        most = commands.MAX_CHILD_BYTES
        wrong = f"the payload of a job with after or replace unstarted has at most {most} bytes"
    if wrong:
        raise ApiError(400, wrong, "invalid_body")
    options = commands.AddOptions(
        body.key,
        body.replace is not None,
        after,
        body.even_failed,
        body.unique_for_ms,
        body.replace == "different",
        body.has_followers,
        b"" if body.follows is None else parse_id(body.follows),
        replaces_unstarted=body.replace == "unstarted",
        unless=b"" if body.unless is None else parse_id(body.unless),
    )
    return None if options == commands.AddOptions() else options


def parse_id(text: str) -> bytes:
    # The work queue reads whatever begins with an id, as workq does; here nothing may follow.
    job_id = read_id(text.encode()) if _JOB_ID.fullmatch(text) else None
    if job_id is None:
        raise ApiError(400, f"an id is a UUID, not {text[:60]!r}", "invalid_id")
    return job_id


def read_queue(name: str) -> str:
    known = read_name(name.encode(errors="surrogateescape"))
    if known is None:
        raise ApiError(400, "a queue's name is 1 to 255 of A-Z a-z 0-9 _ . -", "invalid_name")
    return known


def _id(call: RouteCall) -> bytes:
    return parse_id(call.path["job"])


def _event(call: RouteCall) -> str:
    name = call.path["event"]
    if read_step_name(name.encode(errors="surrogateescape")) is None:
        raise ApiError(400, f"not the name of an event: {name!r}", "invalid_name")
    return name


def _step_value(body: values.StepBody | values.EventBody) -> bytes:
    value = read_bytes(body.value, body.value_base64, "value")
    if len(value) > commands.MAX_STEP_BYTES:
        raise ApiError(400, f"value is larger than {commands.MAX_STEP_BYTES} bytes", "invalid_body")
    return value


def _result(body: values.FinishBody) -> bytes:
    return _payload(body.result, body.result_base64, "result")


def _payload(text: str, base64: str | None, name: str) -> bytes:
    data = read_bytes(text, base64, name)
    if len(data) > commands.MAX_PAYLOAD_BYTES:
        raise ApiError(
            400, f"{name} is larger than {commands.MAX_PAYLOAD_BYTES} bytes", "invalid_body"
        )
    return data


class QueueRates:
    """Jobs added and leases started per second, by queue, from the engine's own counters.

    sample() every few seconds -->  (added, started) of all queues, now and before
    of(number)                 -->  what both gained between the two, per second

    Nothing is known before the second sample. A queue that was made since counts from zero.
    """

    def __init__(self, totals: Callable[[], Totals]) -> None:
        self._totals = totals
        self._before: tuple[float, Totals] | None = None
        self._now: tuple[float, Totals] | None = None

    def sample(self, now_s: float) -> None:
        self._before, self._now = self._now, (now_s, self._totals())

    def rates_of(self, number: int) -> tuple[float, float] | None:
        """Added and started, per second; None: not known yet."""
        if self._before is None or self._now is None:
            return None
        (then_s, then), (now_s, now) = self._before, self._now
        seconds = max(now_s - then_s, 0.001)
        before, after = _at(then, number), _at(now, number)
        # A number may have been given to another queue meanwhile.
        added, started = (max(0, b - a) / seconds for a, b in zip(before, after, strict=True))
        return added, started


def _at(totals: Totals, number: int) -> tuple[int, int]:
    return totals[number] if number < len(totals) else (0, 0)
