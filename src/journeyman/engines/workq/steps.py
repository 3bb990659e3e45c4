"""Steps of jobs: values that a task has recorded on its way, so that no later attempt repeats them.

    step ID NAME NUMBER   of a leased job, by its present attempt: recorded once, then it stays
    inspect steps ID      all that were recorded, in their order

The ledger has a record of each step, which is durable before the reply (``LogRecorder.is_urgent``).
Values are also in memory, and bounded: of a job, and of all jobs together.

    attempt ends, job fails or is requeued    its steps stay: the next attempt goes on after them
    job completes                             they stay too, for people and for forks, as long as
                                              the table has room for those of completed jobs
    job is deleted or expires                 its steps are forgotten, in a later batch: a power cut
                                              must not leave the job without them

A job that gets the id of a former one has none of its steps: a record names the *life* of its job,
which is the moment the job was added. A requeued job is added once more, and its options say which
life its steps are of (``begun_ns``).
"""

from __future__ import annotations

from journeyman.engines.workq import packed
from journeyman.engines.workq.ledger_entries import LoadedExtensions
from journeyman.engines.workq.messages import Client
from journeyman.engines.workq.state import WorkqState
from journeyman.engines.workq.step_table import StepKey, StepValue, subject_of, text_of
from journeyman.formats.ledger import StepDone, StepForgotten
from journeyman.protocols.workq import replies
from journeyman.protocols.workq.commands import Complaint, InspectSteps, RecordStep, RefusedLine

_NO_LEDGER = RefusedLine(Complaint.NO_LEDGER)
_NOT_LEASED = RefusedLine(Complaint.NOT_LEASED)
_LEASED_AGAIN = RefusedLine(Complaint.LEASED_AGAIN)
_CANCELLED = RefusedLine(Complaint.CANCELLED)
_TOO_MANY = RefusedLine(Complaint.TOO_MANY_STEPS)


def record(state: WorkqState, command: RecordStep, _client: Client) -> replies.Reply:
    extensions, job_id = state.extensions, command.job_id
    refused = refusal(state, job_id, command.attempt)
    if refused is not None:
        return refused
    key = StepKey(command.name, command.number)
    if key in extensions.steps.steps_of(job_id):  # sent again: the reply was lost
        return replies.DONE
    if not extensions.steps.has_room(job_id, command.value, namespace=command.namespace):
        return _TOO_MANY
    keep(state, job_id, key, StepValue(command.value, state.now_ns))
    return replies.DONE


def refusal(state: WorkqState, job_id: bytes, attempt: int) -> replies.Reply | None:
    """Why this attempt cannot record anything; None: it can."""
    if not state.extensions.is_allowed:
        return _NO_LEDGER
    entry = state.find(job_id)
    if entry is None:
        return replies.NOT_FOUND
    spec, stage, attempts, *_ = packed.opened(entry)
    if stage != packed.LEASED or packed.is_run(spec):  # a run is in no log
        return _CANCELLED if stage == packed.CANCELLED else _NOT_LEASED
    return None if attempt == attempts else _LEASED_AGAIN


def keep(state: WorkqState, job_id: bytes, key: StepKey, value: StepValue) -> None:
    """Record a step unless it is recorded."""
    table = state.extensions.steps
    if key in table.steps_of(job_id):
        return
    table.add(job_id, key, value, _queue_of(state, job_id))
    life = _life_with_steps(state, job_id)
    text, is_base64 = text_of(value.value)
    state.ledger.append(StepDone(state.instant, subject_of(job_id, key), life, text, is_base64))


def inspect(state: WorkqState, command: InspectSteps, _client: Client) -> replies.Reply:
    job_id = command.job_id
    if command.attempt and (refused := refusal(state, job_id, command.attempt)) is not None:
        return refused  # an attempt without the lease may find nothing, and would repeat steps
    if state.find(job_id) is None and job_id not in state.extensions.children:
        return replies.NOT_FOUND
    steps = state.extensions.steps.steps_of(job_id)
    return replies.StepList(
        tuple(replies.RecordedStep(*key, *value) for key, value in steps.items())
    )


def begin_again(state: WorkqState, job_id: bytes) -> int:
    """Return the life whose steps a job goes on with that is added once more; 0: it has none."""
    return _life_with_steps(state, job_id) if job_id in state.extensions.steps else 0


def forget(state: WorkqState, limit: int) -> None:
    """Remove steps from the ledger that no job needs, so many at a time."""
    for job_id, key in state.extensions.steps.take_forgotten(limit):
        state.ledger.append(StepForgotten(state.instant, subject_of(job_id, key)))


def load(state: WorkqState, loaded: LoadedExtensions) -> None:
    """Take the steps of a ledger, after the jobs, their options and the waiting jobs."""
    table = state.extensions.steps
    for step in loaded.steps.values():
        if step.life and step.life == _life_with_steps(state, step.job_id):
            table.add(step.job_id, step.key, step.value, _queue_of(state, step.job_id))
        else:
            table.forget(step.job_id, step.key)
    for job_id in list(table.by_job):
        entry = state.jobs.get(job_id)
        if entry is not None and packed.opened(entry)[1] == packed.COMPLETED:
            table.complete(job_id, in_batch=False)


def _queue_of(state: WorkqState, job_id: bytes) -> str:
    """The name of the queue of a job."""
    entry = state.jobs.get(job_id)
    if entry is None:
        return state.extensions.children[job_id].job.name
    return state.queues.by_number[packed.queue_of(packed.spec_of(entry))].name


def _life_with_steps(state: WorkqState, job_id: bytes) -> int:
    """0: there is no such job."""
    entry = state.jobs.get(job_id)
    if entry is None:
        child = state.extensions.children.get(job_id)
        return 0 if child is None or child.job.options is None else child.job.options.begun_ns
    options = state.extensions.options.get(job_id)
    return options.begun_ns if options is not None and options.begun_ns else packed.life_of(entry)
