"""One attempt at a job: payload in, outcome out. The same for every kind of worker and for tests.

    Delivery --prepare--> Prepared --middleware, function--> value or exception --> Outcome

    Done(result)             completed
    Again(failure, delay)    failed, to be tried again after the delay
    GivenBack(failure, delay)  of a task that this app does not know: for another worker
    Dead(failure)            failed, not to be tried again, whatever retries are left
    AttemptParked()                  parked (steps.py)

A worker runs functions its own way (thread, event loop); everything else about an attempt is here.
"""

from __future__ import annotations

import logging
import random
import traceback
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from types import TracebackType
from typing import Any, NamedTuple

from journeyman.errors import JourneymanError
from journeyman.protocols.workq.commands import WorkerNotes
from journeyman.protocols.workq.salts import stable_id
from journeyman.tasks import outcomes
from journeyman.tasks.app import App
from journeyman.tasks.broker import JobEnding, Order
from journeyman.tasks.current import CurrentJob, DoneJob, FailedJob, set_current
from journeyman.tasks.durations import Backoff
from journeyman.tasks.envelope import MAX_BYTES, Envelope, Failure, UnreadableJob, written
from journeyman.tasks.errors import GiveUp, JobTimeout, Retry
from journeyman.tasks.flows import ended, following_order
from journeyman.tasks.jobs import value_of
from journeyman.tasks.options import Options, max_attempts_of
from journeyman.tasks.sending import Application
from journeyman.tasks.task import AnyTask
from journeyman.units import MS_PER_S

logger = logging.getLogger("journeyman.worker")
_SHOWN_NAME = 100  # characters
SHOWN_STEPS = 20
# Workers that know the task may share the queue with many that do not: the first delays are short,
# because chance decides which of them gets the job.
GIVEN_BACK = Backoff(0.05, factor=1.5, max=300.0, jitter=0.1)


class WorkerLost(JourneymanError):
    """The workers of a job died or hung too often: its last attempt only reports this."""

    def __init__(self, delivery: Delivery) -> None:
        died = delivery.number - 1 - delivery.fails
        super().__init__(f"{died} workers died or hung while they ran this job")


class UnknownTask(UnreadableJob):
    """This worker's app has no task of this name; another worker's may."""


class Delivery(NamedTuple):
    """A leased job. ``fails`` so far, of ``max_fails``; ``attempt`` counts this one, and those that
    were ``given_back`` by workers that do not know the task."""

    job_id: str
    queue: str
    payload: bytes
    ttr_ms: int = 0
    attempt: int = 1
    fails: int = 0
    max_fails: int = 1
    given_back: int = 0

    @property
    def number(self) -> int:
        """The number of this attempt, for people and limits, without those given back. A power
        cut may have counted one of them twice."""
        return max(self.attempt - self.given_back, self.fails + 1)


class Prepared(NamedTuple):
    """A job that can be started. ``task`` is None if ``problem`` says why it cannot."""

    delivery: Delivery
    current: CurrentJob
    envelope: Envelope
    task: AnyTask | None
    problem: JourneymanError | None = None
    # The members of a batch (batches.py), which has one call for them.
    members: tuple[Prepared, ...] = ()

    @property
    def options(self) -> Options:
        return Options() if self.task is None else self.task.defaults

    @property
    def name(self) -> str:
        """The name of the task in a line of text; what no task is called may hold line breaks, or a
        megabyte."""
        return repr(self.current.task[:_SHOWN_NAME])[1:-1] or "?"


def prepare(app: App, delivery: Delivery, touch: Callable[[], None] | None = None) -> Prepared:
    """Read the payload and find the task."""
    current = CurrentJob(delivery.job_id, "", delivery.queue, delivery.number, touch=touch)
    try:
        envelope = Envelope.decode(delivery.payload, app.codec)
    except UnreadableJob as error:
        return Prepared(delivery, current, Envelope(""), None, error)
    current.task, current.args = envelope.task, envelope.args
    current.kwargs, current.trace = envelope.kwargs, envelope.trace
    if delivery.number >= max_attempts_of(delivery.max_fails):
        return Prepared(delivery, current, envelope, None, WorkerLost(delivery))
    task = app.tasks.get(envelope.task)
    if task is None:
        name = envelope.task[:_SHOWN_NAME]
        said = f"unknown task {name!r}: is its module imported by this worker's app?"
        if delivery.job_id == str(stable_id(envelope.task)):  # as Recurring makes them
            said += f" If it was removed: journeyman timetable rm {name}"
        last = envelope.task.rpartition(".")[2]
        for known in [each for each in app.tasks if each.rpartition(".")[2] == last][:1]:
            said += f" It knows {known!r}: import it by the same name here and there"
        return Prepared(delivery, current, envelope, None, UnknownTask(said))
    prepared = Prepared(delivery, current, envelope, task)
    return prepared if envelope.gather else _unpacked(prepared)


def _unpacked(prepared: Prepared) -> Prepared:
    """Return the job with the arguments as the function takes them."""
    envelope, task = prepared.envelope, prepared.task
    assert task is not None
    try:
        begins_at = 1 if envelope.even_failed else 0  # a list of ``Ended``
        args, kwargs = task.arguments.unpack(envelope.args, envelope.kwargs, begins_at=begins_at)
    except TypeError as error:
        return prepared._replace(task=None, problem=UnreadableJob(str(error)))
    prepared.current.args, prepared.current.kwargs = args, kwargs
    return prepared._replace(envelope=replace(envelope, args=args, kwargs=kwargs))


def gathered(app: App, prepared: Prepared, endings: Sequence[JobEnding | None]) -> Prepared:
    """Return the job with the results of the jobs before it, or the one result, as its first
    argument. None among the endings: that job is gone."""
    ids = prepared.envelope.gather
    values: list[Any] = []
    for job_id, ending in zip(ids, endings, strict=True):
        why = "is gone"
        try:
            if prepared.envelope.even_failed:
                values.append(ended(app.codec, ending))
                continue
            if ending is not None and ending.succeeded:
                values.append(value_of(app.codec, ending))
                continue
        except Exception as error:  # noqa: BLE001 - anyone can complete a job, with any bytes
            why = f"cannot be read ({type(error).__name__}: {error})"
        problem = UnreadableJob(f"the result of job {job_id} of the group {why}")
        return prepared._replace(task=None, problem=problem)
    first = values[0] if prepared.envelope.single and len(values) == 1 else values
    envelope = replace(prepared.envelope, args=(first, *prepared.envelope.args))
    return _unpacked(prepared._replace(envelope=envelope))


def batch_of(members: Sequence[Prepared]) -> Prepared:
    """One call for these jobs of a batch task. ``jm.job()`` is the first of them, and speaks for
    all."""
    first = members[0]
    assert first.task is not None
    items = [next(iter(_only_values(member)), None) for member in members]
    currents = [member.current for member in members]

    def touch() -> None:
        for current in currents:
            if current.touch is not None:
                current.touch()

    def note(notes: WorkerNotes) -> None:
        for current in currents:
            if current.note is not None:
                current.note(notes)

    current = replace(first.current, args=(items,), kwargs={}, touch=touch, note=note, steps=None)
    envelope = replace(first.envelope, args=(items,), kwargs={}, then=(), gather=())
    return Prepared(first.delivery, current, envelope, first.task, members=tuple(members))


def _only_values(member: Prepared) -> tuple[Any, ...]:
    return (*member.envelope.args, *member.envelope.kwargs.values())


def call_here(prepared: Prepared) -> Any:
    """Call the sync function of a task in this thread."""
    task, envelope = prepared.task, prepared.envelope
    assert task is not None
    set_current(prepared.current)
    if not task.app.contexts:
        return task.function(*envelope.args, **envelope.kwargs)
    with _entered(task.app):
        return task.function(*envelope.args, **envelope.kwargs)


async def await_here(prepared: Prepared) -> Any:
    """Call the function on the event loop, be it sync or async."""
    task, envelope = prepared.task, prepared.envelope
    assert task is not None
    if not task.is_async:
        return call_here(prepared)
    with _entered(task.app):
        return await task.function(*envelope.args, **envelope.kwargs)


def _entered(app: Application) -> ExitStack:
    with ExitStack() as stack:
        for context in app.contexts:
            stack.enter_context(context())
        return stack.pop_all()


async def call_around(app: App, prepared: Prepared, call: Callable[[], Awaitable[Any]]) -> Any:
    """Await the call inside of all middleware of the app."""
    set_current(prepared.current)
    for middleware in reversed(app.middleware):
        call = _wrapped(middleware.around, prepared.current, call)
    return await call()


def _wrapped(
    hook: Callable[[CurrentJob, Callable[[], Awaitable[Any]]], Awaitable[Any]],
    current: CurrentJob,
    call: Callable[[], Awaitable[Any]],
) -> Callable[[], Awaitable[Any]]:
    return lambda: hook(current, call)


def end_attempt(
    app: App,
    prepared: Prepared,
    value: Any,
    error: BaseException | None = None,
    chance: float | None = None,
) -> outcomes.Outcome | outcomes.BatchEnded:
    """The outcome of a function, or of each job of a batch, that returned or raised."""
    members, steps = prepared.members, prepared.current.steps
    if steps is not None and steps.is_parked:
        return outcomes.AttemptParked()
    if error is None and steps is not None and (left := steps.not_asked_for()):
        _tell_changed(prepared, left)
    if not members:
        return succeeded(app, prepared, value) if error is None else failed(prepared, error, chance)
    values = [None] * len(members) if value is None else value
    if error is None and not (isinstance(values, list) and len(values) == len(members)):
        error = GiveUp(
            f"{prepared.name} returned no list of {len(members)} results, one for each job"
        )
    if error is not None:
        return outcomes.BatchEnded(tuple([failed(member, error, chance) for member in members]))
    pairs = zip(members, values, strict=True)
    return outcomes.BatchEnded(tuple([succeeded(app, member, own) for member, own in pairs]))


def _tell_changed(prepared: Prepared, steps: Sequence[str]) -> None:
    """Say in the worker's log and in that of the job which recorded steps it did not ask for."""
    names = ", ".join(steps[:SHOWN_STEPS])
    line = f"{len(steps)} recorded steps were not asked for, the code has changed: {names}"
    logger.warning("%s %s: %s", prepared.name, prepared.delivery.job_id, line)
    if prepared.current.note is not None:
        prepared.current.note(WorkerNotes(log=(line,)))


def succeeded(app: App, prepared: Prepared, value: Any) -> outcomes.Outcome:
    """The outcome of a function that returned."""
    try:
        what = f"the result of {prepared.name}"
        packed = value if prepared.task is None else prepared.task.arguments.pack_result(value)
        result = b"" if packed is None else written(app.codec, packed, what)
        if len(result) > MAX_BYTES:
            raise JourneymanError(
                f"{what} takes {len(result)} bytes, at most {MAX_BYTES} fit;"
                " store it elsewhere and return a reference"
            )
        then = prepared.envelope.then
        following = None
        if then:
            following = following_order(app, prepared.delivery.job_id, then, value)
    except Exception as error:  # noqa: BLE001 - a codec of the user may raise anything
        return failed(prepared, error)
    return outcomes.TaskDone(result, following, value)


def failed(
    prepared: Prepared, error: BaseException, chance: float | None = None
) -> outcomes.Outcome:
    """The outcome of a function that raised: tried again while fails are left."""
    delivery = prepared.delivery
    failure = _described(error)
    fails = delivery.fails + 1
    is_last = fails >= delivery.max_fails or isinstance(error, WorkerLost)
    if is_last or not _is_worth_a_retry(error, prepared.options):
        told = FailedJob.of_current(prepared.current, failure, error)
        return outcomes.Dead(failure, told, _report_of(prepared, told))
    if isinstance(error, Retry) and error.after_s is not None:
        return outcomes.Again(failure, round(error.after_s * MS_PER_S), error)
    rolled = random.random() if chance is None else chance
    delay_s = prepared.options.backoff.delay_s(fails, rolled)
    return outcomes.Again(failure, round(delay_s * MS_PER_S), error)


def _report_of(prepared: Prepared, failed_job: FailedJob) -> Order | None:
    if prepared.task is None or prepared.options.on_failure is None:
        return None
    from journeyman.tasks.failure_reports import order_of_report

    try:
        return order_of_report(prepared.task.app, prepared.options, failed_job)
    except Exception:  # a codec of the user may raise anything
        logger.exception("%s: its failure cannot be reported", prepared.name)
        return None


def given_back(
    prepared: Prepared, problem: UnknownTask, chance: float | None = None
) -> outcomes.Outcome:
    """The outcome of a job whose task another worker may know: neither a failure nor an attempt
    counts, so the job waits for that worker until its TTL ends."""
    rolled = random.random() if chance is None else chance
    delay_s = GIVEN_BACK.delay_s(prepared.delivery.given_back + 1, rolled)
    return outcomes.GivenBack(_described(problem), round(delay_s * MS_PER_S))


def _is_worth_a_retry(error: BaseException, options: Options) -> bool:
    if isinstance(error, GiveUp):
        return False
    return options.retry_on is None or isinstance(error, (Retry, *options.retry_on))


def call_hooks(app: App, prepared: Prepared, outcome: outcomes.Outcome) -> None:
    """Call the hooks of the task and of the app; one that raises is logged and stops nothing."""
    task, hooks = prepared.task, list[Callable[[Any], Any]]()
    argument: DoneJob | FailedJob | None = None
    if isinstance(outcome, outcomes.TaskDone) and task is not None and task.hooks.success:
        hooks, argument = task.hooks.success, DoneJob.of_current(prepared.current, outcome.value)
    elif isinstance(outcome, outcomes.Again) and task is not None and task.hooks.retry:
        failed = FailedJob.of_current(prepared.current, outcome.failure, outcome.exception)
        hooks, argument = task.hooks.retry, failed
    elif isinstance(outcome, outcomes.Dead):
        of_task = [] if task is None else task.hooks.failure
        hooks, argument = [*of_task, *app.failure_hooks], outcome.failed
    for hook in hooks:
        try:
            hook(argument)
        except Exception:
            logger.exception("hook %s raised", getattr(hook, "__name__", hook))


def _described(error: BaseException) -> Failure:
    if isinstance(error, Retry | GiveUp | UnreadableJob | JobTimeout | WorkerLost):
        return Failure(type(error).__name__, _text_of(error))
    frames = error.__traceback__
    while frames is not None and frames.tb_next is not None and _is_ours(frames):
        frames = frames.tb_next  # the first lines of the report are those of the task
    text = "".join(traceback.format_exception(type(error), error, frames))
    return Failure(type(error).__name__, _text_of(error), text)


def _text_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - code of the user; without an outcome the job would hang
        return "its text cannot be made"


def _is_ours(frames: TracebackType) -> bool:
    return str(frames.tb_frame.f_globals.get("__name__")).startswith("journeyman.")
