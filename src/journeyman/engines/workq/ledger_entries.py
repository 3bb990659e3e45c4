"""Entries of the ledger that belong to the work queue: what their records mean, and their bodies.

extensions.py says which facts these are. ``LoadedExtensions`` gathers them for the loaders.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from msgspec import structs

from journeyman.engines.workq.step_table import LoadedStep, StepValue, read_event, read_record
from journeyman.formats import ledger
from journeyman.protocols.workq.commands import Add, AddOptions, Limits
from journeyman.protocols.workq.readers import read_id
from journeyman.protocols.workq.replies import id_text

PARENT_BYTES: Final = 128  # the memory that a parent of a child takes
# All families of the ledger that the work queue has.
FAMILIES: Final = ("queue-limits", "job-options", "parent", "step", "event")


class StoredJobOptions(NamedTuple):
    key: str = ""
    failed_ns: int = 0  # the retry that began then
    ready_ns: int = 0  # is ready then
    touched: int = 0  # the attempt whose lease was touched
    namespace: str = ""  # that of the token which added a job with children; * covers all
    cancelled_ns: int = 0  # when a client cancelled it
    given_back: int = 0  # attempts that ended so
    begun_ns: int = 0  # the life to which the steps of a requeued job belong
    first_ns: int = 0  # when a requeued job was first added

    def ready_after(self, timed_out_ns: int) -> int:
        """When the retry is ready that began then; 0: no delay was chosen for it."""
        return self.ready_ns if self.failed_ns and self.failed_ns == timed_out_ns else 0


class Child(NamedTuple):
    """A job that waits for others. ``left``: those that have not ended."""

    job: Add
    left: dict[bytes, None]  # changed in place: it may be long, and all parents change it
    failed: bytes = b""  # a parent that failed or is gone

    @classmethod
    def of_add(cls, job: Add) -> Child:
        return cls(job, dict.fromkeys(() if job.options is None else job.options.after))

    @property
    def parents(self) -> tuple[bytes, ...]:
        return () if self.job.options is None else self.job.options.after

    @property
    def size(self) -> int:
        """About how many bytes it takes."""
        return len(self.job.payload) + PARENT_BYTES * len(self.parents)

    @property
    def is_to_be_added(self) -> bool:
        return not self.left or bool(self.failed)

    def fails_with(self, *, succeeded: bool) -> bool:
        """Return whether a parent that ended so makes it fail."""
        even_failed = self.job.options is not None and self.job.options.even_failed
        return not succeeded and not even_failed

    def without(self, parent: bytes, *, succeeded: bool) -> Child:
        """Return it as it is after this parent has ended; only for a child that no batch has seen
        yet."""
        self.left.pop(parent, None)
        return self._replace(failed=parent) if self.fails_with(succeeded=succeeded) else self


class ParentMark(NamedTuple):
    """The ledger says that a parent has ended."""

    life: int = 0  # the life of the job that ended; 0: any, none is in the log
    succeeded: bool = True


@dataclass(slots=True)
class LoadedExtensions:
    """The entries of a ledger, for the loaders."""

    limits: dict[str, Limits] = field(default_factory=dict)
    options: dict[bytes, StoredJobOptions] = field(default_factory=dict)
    children: dict[bytes, Add] = field(default_factory=dict)
    ended: dict[bytes, dict[bytes, ParentMark]] = field(default_factory=dict)  # for each child
    marked: dict[bytes, ParentMark] = field(default_factory=dict)  # parents that have ended
    steps: dict[str, LoadedStep] = field(default_factory=dict)
    events: dict[str, StepValue] = field(default_factory=dict)
    _children_of: dict[bytes, list[bytes]] = field(default_factory=dict)

    @property
    def rates(self) -> dict[str, int]:
        return {name: limits.rate for name, limits in self.limits.items() if limits.rate}

    @property
    def key_rates(self) -> dict[str, int]:
        return {name: each.key_rate for name, each in self.limits.items() if each.key_rate}

    @property
    def known_ids(self) -> set[bytes]:
        """Ids that must be folded one by one: their options, or their children, ask for more."""
        parents = (job.options.after for job in self.children.values() if job.options is not None)
        return set(self.options).union(self.children, *parents)

    def add(self, record: ledger.Record) -> bool:
        """One record of FAMILIES, in the order of the ledger. False: it makes no sense."""
        if isinstance(record, ledger.QueueLimitsSet):
            limits = read_limits(record.body)
            if limits is not None:
                self.limits[record.queue] = limits
            return limits is not None
        if isinstance(record, ledger.StepDone):
            step = read_record(record)
            if step is not None:
                self.steps[record.step] = step
            return step is not None
        if isinstance(record, ledger.EventSet):
            event = read_event(record)
            if event is not None:
                self.events[record.event] = event
            return event is not None
        assert isinstance(record, ledger.JobOptionsSet | ledger.ParentEnded | ledger.ParentOutcome)
        job_id = read_id(record.job.encode("utf-8", "surrogateescape"))
        if job_id is None:
            return False
        if isinstance(record, ledger.JobOptionsSet):
            return self._add_options(job_id, record.body)
        mark = ParentMark()
        if isinstance(record, ledger.ParentOutcome):
            mark = ParentMark(record.created_ns, not record.failed)
        self.marked[job_id] = mark
        for child in self._children_of.get(job_id, ()):  # their records stand before this one
            self.ended.setdefault(child, {})[job_id] = mark
        return True

    def _add_options(self, job_id: bytes, body: ledger.Body) -> bool:
        options, child = read_options(job_id, body)
        if options is not None and any(options):
            self.options[job_id] = options
        if child is not None:
            self.children[job_id] = child
            for parent in child.options.after if child.options is not None else ():
                self._children_of.setdefault(parent, []).append(job_id)
        return options is not None


def limits_body(limits: Limits) -> ledger.Body:
    return {name: value for name, value in structs.asdict(limits).items() if value}


def read_limits(body: ledger.Body) -> Limits | None:
    """Read the limits of a queue. None: this version does not know such limits."""
    fields = Limits.__struct_fields__
    values = _numbers(body, [name for name in fields if name not in ("fair", "weights")])
    if values is None or set(body) - set(fields):
        return None
    fair, weights = body.get("fair", False), body.get("weights", {})
    if type(fair) is not bool or not isinstance(weights, dict):
        return None
    if not all(type(weight) is int and weight > 0 for weight in weights.values()):
        return None
    limits = Limits(**values, fair=fair, weights=weights)
    pairs = ((limits.rate, limits.per_ms), (limits.key_rate, limits.key_per_ms))
    return limits if all(bool(rate) == bool(per_ms) for rate, per_ms in pairs) else None


def options_body(options: StoredJobOptions, added: Add | None = None) -> ledger.Body:
    """``added``: a child that this batch adds; its record must not be lost before."""
    body = {name: value for name, value in options._asdict().items() if value}
    return body if added is None else child_body(added) | body


def child_body(job: Add) -> ledger.Body:
    options = job.options or AddOptions()
    numbers = {name: getattr(job, name) for name in _CHILD_NUMBERS}
    return {
        "after": [id_text(parent) for parent in options.after],
        "even_failed": int(options.even_failed),
        "key": options.key,
        "name": job.name,
        "payload": b64encode(job.payload).decode(),
        **({"namespace": options.namespace} if options.namespace else {}),
        **({"begun_ns": options.begun_ns} if options.begun_ns else {}),
        **({"first_ns": options.first_ns} if options.first_ns else {}),
        **numbers,
    }


_OPTION_NUMBERS = (
    *("failed_ns", "ready_ns", "touched", "cancelled_ns", "given_back"),
    *("begun_ns", "first_ns"),
)
_CHILD_NUMBERS = ("ttr_ms", "ttl_ms", "priority", "max_attempts", "max_fails", "retry_delay_ms")


def read_options(job_id: bytes, body: ledger.Body) -> tuple[StoredJobOptions | None, Add | None]:
    """The options of a job, and the job itself if it waits for others. None: it makes no sense."""
    key, namespace = body.get("key", ""), body.get("namespace", "")
    numbers = _numbers(body, _OPTION_NUMBERS)
    if not isinstance(key, str) or not isinstance(namespace, str) or numbers is None:
        return None, None
    options = StoredJobOptions(key, namespace=namespace, **numbers)
    if "after" not in body:
        return options, None
    try:
        after = tuple(bytes.fromhex(text.replace("-", "")) for text in body["after"])
        payload = b64decode(body["payload"], validate=True)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None, None
    name, fields = body.get("name"), _numbers(body, _CHILD_NUMBERS)
    if not isinstance(name, str) or not name or fields is None or not fields.get("ttr_ms"):
        return None, None
    if not fields.get("ttl_ms") or any(len(parent) != 16 for parent in after):
        return None, None
    more = AddOptions(
        key,
        after=after,
        even_failed=bool(body.get("even_failed")),
        namespace=namespace,
        begun_ns=options.begun_ns,
        first_ns=options.first_ns,
    )
    job = Add(job_id, name, payload=payload, options=more, **fields)
    return options, job


def _numbers(body: Mapping[str, Any], names: Iterable[str]) -> dict[str, int] | None:
    found = {name: body[name] for name in names if name in body}
    return found if all(type(value) is int for value in found.values()) else None
