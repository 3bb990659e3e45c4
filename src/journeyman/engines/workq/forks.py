"""Forks: a new job that goes on from a step of another one, with what that one recorded before it.

    fork ID NEW-ID NAME NUMBER     NEW-ID is added as ID was, and has its steps up to this one

It works for a job in any state, and changes nothing for it: both may run at once. Two steps say
where they belong, by names that no task can give:

    of the new job    !fork       the job and the step from which it goes on
    of the other      !forked     the new job, for each fork
"""

from __future__ import annotations

from itertools import takewhile
from typing import Final

from journeyman.engines.workq import packed, steps
from journeyman.engines.workq.adding import enqueue, refusal
from journeyman.engines.workq.extensions import EFFORT_BYTES
from journeyman.engines.workq.ledger_entries import StoredJobOptions
from journeyman.engines.workq.messages import Client
from journeyman.engines.workq.parks import TIMED_OUT
from journeyman.engines.workq.state import WorkqState
from journeyman.engines.workq.step_table import StepKey, StepValue
from journeyman.protocols.workq import replies
from journeyman.protocols.workq.commands import Complaint, Fork, RefusedLine

ORIGIN: Final = StepKey("!fork", 1)
FORKED: Final = "!forked"

_NO_LEDGER = RefusedLine(Complaint.NO_LEDGER)
_UNKNOWN_STEP = RefusedLine(Complaint.UNKNOWN_STEP)
_TOO_MANY_STEPS = RefusedLine(Complaint.TOO_MANY_STEPS)


def fork(state: WorkqState, command: Fork, _client: Client) -> replies.Reply:
    table, job_id, new_id = state.extensions.steps, command.job_id, command.new_id
    if not state.extensions.is_allowed:
        return _NO_LEDGER
    entry = state.find(job_id)
    if entry is None or packed.is_run(packed.spec_of(entry)):
        return replies.NOT_FOUND
    origin = f"{replies.id_text(job_id)} {command.name}#{command.number}".encode()
    made = table.steps_of(new_id).get(ORIGIN)
    if made is not None and made.value == origin:  # sent again: the reply was lost
        return replies.DONE
    recorded = table.steps_of(job_id)
    ends = {StepKey(command.name + late, command.number) for late in ("", TIMED_OUT)}
    if ends.isdisjoint(recorded):
        return _UNKNOWN_STEP
    before = takewhile(lambda key: key not in ends, recorded)
    given = {key: recorded[key].value for key in before if not is_note(key.name)}
    forks = StepKey(FORKED, 1 + sum(key.name == FORKED for key in recorded))
    namespace = command.namespace
    has_room = table.has_room(new_id, origin, *given.values(), namespace=namespace)
    if not has_room or not table.has_room(job_id, new_id, namespace=namespace):
        return _TOO_MANY_STEPS
    refused = refusal(state, new_id, b"", None)
    if refused is not None:
        return refused
    _add_like(state, entry, command)
    for key, value in ((ORIGIN, origin), *given.items()):
        steps.keep(state, new_id, key, StepValue(value, state.now_ns))
    new_text = replies.id_text(new_id).encode()
    steps.keep(state, job_id, forks, StepValue(new_text, state.now_ns))
    state.extensions.effort += sum(map(len, given.values())) // EFFORT_BYTES + len(given)
    return replies.DONE


def is_note(name: str) -> bool:
    """Return whether a step of this name was recorded by a fork, and not by the task."""
    return name in (ORIGIN.name, FORKED)


def origin_of(state: WorkqState, job_id: bytes) -> tuple[str, str]:
    """Return the job and the step from which a job was forked; empty: it was not."""
    made = state.extensions.steps.steps_of(job_id).get(ORIGIN)
    origin, _, step = ("" if made is None else made.value.decode()).partition(" ")
    return origin, step


def forks_of(state: WorkqState, job_id: bytes) -> tuple[str, ...]:
    """Return the ids of the jobs that were forked from this one."""
    recorded = state.extensions.steps.steps_of(job_id)
    return tuple(value.value.decode() for key, value in recorded.items() if key.name == FORKED)


def _add_like(state: WorkqState, entry: packed.Entry, command: Fork) -> None:
    """Add a job as this one was added: with its key, and for its sender. Jobs that follow the new
    one may be added where both senders may add."""
    fields = packed.fields_of(packed.spec_of(entry))
    options = state.extensions.options.get(command.job_id, StoredJobOptions())
    namespace = options.namespace
    if namespace and command.namespace:
        sender = namespace if namespace.startswith(command.namespace) else ""
        namespace = max(command.namespace, sender, key=len)
    enqueue(
        state,
        command.new_id,
        state.queues.by_number[fields.queue].name,
        fields.ttr_ms,
        fields.ttl_ms,
        fields.priority,
        fields.max_attempts,
        fields.max_fails,
        None,
        fields.payload,
        fields.key,
        namespace=namespace,
    )
