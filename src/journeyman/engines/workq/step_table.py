"""The table of the steps of jobs, in memory and bounded, and their records in the ledger."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator
from itertools import islice
from json import dumps
from typing import Final, NamedTuple

from journeyman.engines.workq.namespace_bytes import NamespaceBytes
from journeyman.formats.ledger import EventSet, StepDone
from journeyman.protocols.workq.readers import read_id
from journeyman.protocols.workq.replies import id_text

MAX_STEPS_OF_ONE: Final = 10_000
MAX_BYTES_OF_ONE: Final = 16 * 1024 * 1024  # the values of one job, about
MAX_BYTES: Final = 256 * 1024 * 1024  # the values of all jobs
MAX_COMPLETED_BYTES: Final = 32 * 1024 * 1024  # the values of completed jobs, within that
STEP_BYTES: Final = 200  # a step takes so many besides its value
SHARED_BYTES: Final = 1024  # equal values of this size and more are in memory once


class StepKey(NamedTuple):
    """The name of a step, and how many steps of this name the job had up to it."""

    name: str
    number: int


class StepValue(NamedTuple):
    value: bytes
    done_ns: int


class LoadedStep(NamedTuple):
    """A step as the ledger has it."""

    job_id: bytes
    key: StepKey
    life: int  # the life of its job: packed.life_of
    value: StepValue


class _JobSteps:
    __slots__ = ("is_completed", "queue", "size", "values")

    def __init__(self, queue: str) -> None:
        self.queue = queue  # the name of that of the job
        self.values: dict[StepKey, StepValue] = {}
        self.size = 0
        self.is_completed = False


class StepTable:
    """The steps of jobs, and those that the ledger need not have any more. The steps of completed
    jobs are kept for people and for forks while there is room; the first to complete lose theirs.

    One event may be the value of very many steps, so large values that are equal count once.

    ``note_undo`` gets a function that takes back the change just made.
    """

    def __init__(self, note_undo: Callable[[Callable[[], object]], None]) -> None:
        self._note_undo = note_undo
        self.by_job: dict[bytes, _JobSteps] = {}
        self.completed: dict[bytes, None] = {}  # the completed jobs of ``by_job``, in their order
        self.completed_bytes = 0
        self.forgetting: dict[bytes, dict[StepKey, None]] = {}
        self.ended_now: set[bytes] = set()  # jobs that the open batch has ended
        self.size = 0
        self._shared: dict[bytes, tuple[bytes, int]] = {}  # large values; how many steps have each
        self._of_namespaces = NamespaceBytes(
            lambda: ((steps.queue, steps.size) for steps in self.by_job.values())
        )

    def __contains__(self, job_id: bytes) -> bool:
        return job_id in self.by_job

    def steps_of(self, job_id: bytes) -> dict[StepKey, StepValue]:
        steps = self.by_job.get(job_id)
        return {} if steps is None else steps.values

    def has_room(self, job_id: bytes, *values: bytes, namespace: str = "") -> bool:
        """Return whether the job can have so many more steps, of these values. ``namespace``: that
        of the token, which may not fill the whole table."""
        steps, size = self.by_job.get(job_id), sum(map(len, values)) + STEP_BYTES * len(values)
        known = sum(len(value) for value in values if value in self._shared)
        if not self._of_namespaces.may_have(namespace, size, MAX_BYTES - self.size - size + known):
            return False
        count, size_of_one = (0, 0) if steps is None else (len(steps.values), steps.size)
        is_few = count + len(values) <= MAX_STEPS_OF_ONE
        return is_few and size_of_one + size <= MAX_BYTES_OF_ONE

    def add(self, job_id: bytes, key: StepKey, value: StepValue, queue: str) -> None:
        """``queue``: the name of that of the job."""
        steps = self.by_job.get(job_id)
        if steps is None:
            steps = self.by_job[job_id] = _JobSteps(queue)
        steps.values[key] = self._keep(value)
        self._count(steps, len(value.value) + STEP_BYTES)
        # The record of a former job with this id is replaced by the new one.
        was_forgetting = self._drop_forgetting(job_id, key)
        self._note_undo(lambda: self._take_back(job_id, key, was_forgetting))

    def end(self, job_id: bytes, *, in_batch: bool) -> None:
        """Nobody needs these steps any longer. ``in_batch``: the job's end is not durable yet."""
        steps = self.by_job.pop(job_id)
        self._of_namespaces.count(steps.queue, -steps.size)
        for value in steps.values.values():
            self._let_go(value)
        was_completed = steps.is_completed
        self._set_completed(job_id, steps, False)
        before = self.forgetting.get(job_id)
        self.forgetting[job_id] = {**(before or {}), **dict.fromkeys(steps.values)}
        if in_batch:
            self.ended_now.add(job_id)
        self._note_undo(lambda: self._take_back_end(job_id, steps, before, was_completed))

    def complete(self, job_id: bytes, *, in_batch: bool) -> None:
        """The job has completed."""
        steps = self.by_job[job_id]
        self._set_completed(job_id, steps, True)
        self._note_undo(lambda: self._set_completed(job_id, steps, False))
        while self.completed_bytes > MAX_COMPLETED_BYTES:
            self.end(next(iter(self.completed)), in_batch=in_batch)

    def _set_completed(self, job_id: bytes, steps: _JobSteps, is_completed: bool) -> None:
        if steps.is_completed == is_completed:
            return
        steps.is_completed = is_completed
        if is_completed:
            self.completed[job_id] = None
            self.completed_bytes += steps.size
        else:
            del self.completed[job_id]
            self.completed_bytes -= steps.size

    def forget(self, job_id: bytes, key: StepKey) -> None:
        """A start has found a step that no job needs."""
        self.forgetting.setdefault(job_id, {})[key] = None

    def take_forgotten(self, limit: int) -> list[tuple[bytes, StepKey]]:
        """The first steps that the ledger need not have, and whose jobs have durably ended."""
        taken = list(islice(self._iter_forgetting(), limit))
        for job_id, key in taken:
            self._drop_forgetting(job_id, key)
        self._note_undo(lambda: self._forget_all(taken))
        return taken

    def _forget_all(self, steps: list[tuple[bytes, StepKey]]) -> None:
        for job_id, key in steps:
            self.forget(job_id, key)

    def _iter_forgetting(self) -> Iterator[tuple[bytes, StepKey]]:
        for job_id, keys in self.forgetting.items():
            if job_id not in self.ended_now:
                for key in keys:
                    yield job_id, key

    def _drop_forgetting(self, job_id: bytes, key: StepKey) -> bool:
        keys = self.forgetting.get(job_id)
        if keys is None or key not in keys:
            return False
        del keys[key]
        if not keys:
            del self.forgetting[job_id]
        return True

    def _keep(self, value: StepValue) -> StepValue:
        data = value.value
        self.size += STEP_BYTES
        if len(data) >= SHARED_BYTES:
            data, count = self._shared.get(data, (data, 0))
            self._shared[data] = data, count + 1
            value = value._replace(value=data)
            if count:
                return value
        self.size += len(data)
        return value

    def _let_go(self, value: StepValue) -> None:
        data = value.value
        self.size -= STEP_BYTES
        if len(data) >= SHARED_BYTES:
            data, count = self._shared[data]
            if count > 1:
                self._shared[data] = data, count - 1
                return
            del self._shared[data]
        self.size -= len(data)

    def _count(self, steps: _JobSteps, change: int) -> None:
        steps.size += change
        self._of_namespaces.count(steps.queue, change)
        self.completed_bytes += change if steps.is_completed else 0

    def _take_back(self, job_id: bytes, key: StepKey, was_forgetting: bool) -> None:
        steps = self.by_job[job_id]
        value = steps.values.pop(key)
        self._let_go(value)
        self._count(steps, -len(value.value) - STEP_BYTES)
        if not steps.values:
            del self.by_job[job_id]
        if was_forgetting:
            self.forget(job_id, key)

    def _take_back_end(
        self,
        job_id: bytes,
        steps: _JobSteps,
        before: dict[StepKey, None] | None,
        was_completed: bool,
    ) -> None:
        self.by_job[job_id] = steps
        self._of_namespaces.count(steps.queue, steps.size)
        for value in steps.values.values():
            self._keep(value)
        self._set_completed(job_id, steps, was_completed)
        if before is None:
            self.forgetting.pop(job_id, None)
        else:
            self.forgetting[job_id] = before


# -- records in the ledger --


def read_record(record: StepDone) -> LoadedStep | None:
    """Read a step from the ledger. None: it makes no sense."""
    job_text, _, step = record.step.partition("/")
    name, _, number = step.rpartition("#")
    job_id = read_id(job_text.encode("utf-8", "surrogateescape"))
    if job_id is None or not name or not (number.isascii() and number.isdecimal()):
        return None
    value = _read_value(record)
    if value is None:
        return None
    return LoadedStep(job_id, StepKey(name, int(number)), record.created_ns, value)


def read_event(record: EventSet) -> StepValue | None:
    """Read an event from the ledger. None: it makes no sense."""
    return _read_value(record) if record.event else None


def _read_value(record: StepDone | EventSet) -> StepValue | None:
    try:
        value = b64decode(record.value, validate=True) if record.base64 else record.value.encode()
    except ValueError:
        return None
    return StepValue(value, record.logged.unix_ns)


def subject_of(job_id: bytes, key: StepKey) -> str:
    return f"{id_text(job_id)}/{key.name}#{key.number}"


def text_of(value: bytes) -> tuple[str, int]:
    """The value as text, which people and SQL can read, unless base64 is shorter."""
    encoded = b64encode(value).decode()
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return encoded, 1
    return (text, 0) if len(dumps(text)) <= len(encoded) + 2 else (encoded, 1)
