"""The options of a task: where it runs, how often it is tried, and how many may run at once.

    @app.task(queue="mail", retries=5, backoff=Backoff(10, factor=2, max=3600, jitter=0.1))

``TaskOptions`` is what people write, ``Options`` what it means. Times are seconds, or a timedelta.
Keys are templates over the arguments of a call: ``unique="{customer}"`` allows one unfinished job
per customer; ``unique="args"`` one per set of arguments; ``unique_for=3600`` one an hour;
``debounce=60`` one, a minute after the last of several sends.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeAlias, TypedDict

from journeyman.errors import JourneymanError, UsageError
from journeyman.protocols.workq.commands import MAX_WEIGHT, MAX_WEIGHTS
from journeyman.tasks.durations import MAX_DELAY_S, Backoff, Seconds, as_backoff, time_between
from journeyman.units import MS_PER_S

Errors: TypeAlias = type[Exception] | tuple[type[Exception], ...]

DEFAULT_QUEUE = "default"
DEFAULT_BACKOFF = Backoff()
DEFAULT_LEASE_S = 30.0
DEFAULT_TTL_S = 7 * 86_400.0
MAX_TTL_S = 30 * 86_400.0
MAX_RETRIES = 200
_OF_SERVERS = ("queue", "journal")  # runners that act inside a server
CRASHES = 20  # attempts beyond the first and the retries, for those that a dead worker ended

_QUEUE = re.compile(r"[A-Za-z0-9_.\-]{1,255}")
_RATE = re.compile(r"([1-9]\d{0,8})/(\d*)(ms|s|m|h|d)")
_UNIT_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def max_attempts_of(max_fails: int) -> int:
    """Return the attempts of a job that may fail so often. The last one reports dead workers. The
    workers count them, because an attempt that was given back is none; the server has no limit."""
    return max_fails + CRASHES


class JobOptions(TypedDict, total=False):
    """Options that travel with a job: of a task, or of one call by ``task.options(...)``."""

    queue: str
    retries: int  # how often to try again after a failure
    unique: str | None  # "args", or a template: one unfinished job per key
    debounce: Seconds | None  # start so long after the last send of the same key
    unique_for: Seconds | None  # also no second one so long after the first was sent
    key: str | None  # a template: concurrency is of each key
    fair: str | None  # a template: jobs of the queue are leased in turns over its keys
    priority: int  # higher first
    lease: Seconds  # a job comes back so long after its worker died
    ttl: Seconds  # the job and its result are kept so long


class TaskOptions(JobOptions, total=False):
    """Options of a task; those that a job may not change are read by its worker."""

    backoff: Backoff | Seconds  # a time: the same delay every time
    retry_on: Errors | None  # only these exceptions are tried again
    timeout: Seconds | None  # how long one attempt may take
    rate: str | None  # "10/m": starts of jobs of this queue per time
    concurrency: int | None  # jobs of this queue that run at once
    key_rate: str | None  # "10/m": starts of jobs of each key per time
    weights: Mapping[str, int] | None  # jobs in one turn of these keys
    on_failure: Any  # a task, or words such as "mail ops@example.com"


_OF_WORKERS = TaskOptions.__annotations__.keys() - JobOptions.__annotations__.keys()


def check_job_options(names: Iterable[str]) -> None:
    """Raises UsageError for those that would not reach the worker."""
    for name in _OF_WORKERS & set(names):
        allowed = ", ".join(JobOptions.__annotations__)
        raise UsageError(f"{name} is an option of the task; for one job there are {allowed}")


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a task, checked. Times in seconds."""

    queue: str = DEFAULT_QUEUE
    retries: int = 0
    backoff: Backoff = DEFAULT_BACKOFF
    retry_on: tuple[type[Exception], ...] | None = None  # None: all
    timeout_s: float | None = None
    unique: str | None = None
    unique_for_s: float | None = None
    debounce_s: float | None = None
    rate: Rate | None = None
    concurrency: int | None = None
    key: str | None = None
    key_rate: Rate | None = None
    fair: str | None = None
    weights: tuple[tuple[str, int], ...] = ()
    priority: int = 0
    lease_s: float = DEFAULT_LEASE_S
    ttl_s: float = DEFAULT_TTL_S
    on_failure: Any = None  # a task, or words; see failure_reports.py

    def with_(self, replacements: JobOptions) -> Options:
        """These options with some replaced. Raises UsageError."""
        values: dict[str, Any] = {}
        for name, value in replacements.items():
            check = _CHECKS.get(name)
            if check is None:
                known = ", ".join(_CHECKS)
                raise UsageError(f"unknown task option {name!r}; the options are {known}")
            field, read = check
            values[field] = read(name, value)
        found = replace(self, **values)
        if found.unique_for_s is not None:
            if found.unique_for_s > found.ttl_s:
                raise UsageError(
                    f"unique_for ({found.unique_for_s:.15g} s) must not be longer than ttl"
                    f" ({found.ttl_s:.15g} s): a job is forgotten when its ttl ends"
                )
            if found.unique is None:
                found = replace(found, unique="args")
        if found.debounce_s is not None:
            if found.unique_for_s is not None:
                raise UsageError("debounce and unique_for exclude each other")
            if found.unique is None:
                found = replace(found, unique="args")
        if found.key_rate is not None and found.key is None:
            raise UsageError("key_rate needs a key, such as key='{customer}'; rate is of the queue")
        if found.fair is not None and found.key not in (None, found.fair):
            raise UsageError(
                f"fair ({found.fair!r}) and key ({found.key!r}) must be the same: a job has one key"
            )
        if found.weights and found.fair is None:
            raise UsageError("weights need fair, such as fair='{customer}'")
        return found

    @property
    def key_template(self) -> str | None:
        """Return the template of the key of its jobs: for limits, for turns, or for both."""
        return self.key if self.fair is None else self.fair

    @property
    def max_fails(self) -> int:
        return self.retries + 1

    @property
    def lease_ms(self) -> int:
        return round(self.lease_s * MS_PER_S)

    @property
    def ttl_ms(self) -> int:
        return round(self.ttl_s * MS_PER_S)

    @property
    def unique_ms(self) -> int:
        return round((self.unique_for_s or 0) * MS_PER_S)


@dataclass(frozen=True, slots=True)
class Rate:
    """A limit of ``count`` starts in ``per_ms``."""

    count: int
    per_ms: int

    @classmethod
    def parse(cls, text: str) -> Rate:
        """``10/m``, ``1/30s``. Raises UsageError."""
        found = _RATE.fullmatch(str(text))
        if found is None:
            raise UsageError(f"not a rate: {text!r}; write for example '10/m' or '1/30s'")
        return cls(int(found[1]), int(found[2] or 1) * _UNIT_MS[found[3]])

    def __str__(self) -> str:
        return f"{self.count}/{self.per_ms}ms"


class QueueLimits(NamedTuple):
    """The limits that all tasks of a queue set on it; limits belong to queues."""

    rate: Rate | None = None
    concurrency: int = 0
    key_rate: Rate | None = None
    key_concurrency: int = 0
    fair: bool = False
    weights: tuple[tuple[str, int], ...] = ()

    @classmethod
    def of_options(cls, options: Options) -> QueueLimits:
        count = options.concurrency or 0
        counts = (0, count) if options.key else (count, 0)
        turns = options.fair is not None, options.weights
        return cls(options.rate, counts[0], options.key_rate, counts[1], *turns)


def limits_by_queue(tasks: Mapping[str, Options]) -> dict[str, QueueLimits]:
    """The limits of every queue that has some. Raises UsageError if two tasks disagree."""
    found: dict[str, tuple[str, QueueLimits]] = {}
    for name, options in tasks.items():
        limits = QueueLimits.of_options(options)
        if limits == QueueLimits():
            continue
        other, known = found.setdefault(options.queue, (name, limits))
        if known != limits:
            raise UsageError(
                f"{other} and {name} ask for different limits of the queue {options.queue!r};"
                " give one of them a queue of its own"
            )
    return {queue: limits for queue, (_, limits) in found.items()}


def is_name(text: str) -> bool:
    """Return whether the server takes this as the name of a queue, a key or a worker."""
    return _QUEUE.fullmatch(text) is not None


def key_name(key: str) -> str:
    """A key as the server takes it: as it is, or a digest of it."""
    if is_name(key):
        return key
    import hashlib  # loads OpenSSL, which few keys need

    return hashlib.sha256(key.encode()).hexdigest()[:32]


def filled(template: str, arguments: Mapping[str, Any], task: str) -> str:
    """A key: the template with the arguments of a call. Raises UsageError."""
    try:
        return template.format_map(arguments)
    except (KeyError, IndexError, AttributeError, ValueError) as error:
        names = ", ".join(arguments) or "none"
        problem = f"{type(error).__name__}: {error}"
        raise UsageError(
            f"{task}: cannot fill the key {template!r} ({problem}); arguments: {names}"
        ) from None


def _between(low: int, high: int) -> Any:
    def read(name: str, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise UsageError(f"{name} must be a whole number from {low} to {high}: {value!r}")
        return value

    return read


def _optional(read: Any) -> Any:
    return lambda name, value: None if value is None else read(name, value)


def _queue(name: str, value: Any) -> str:
    if not isinstance(value, str) or not _QUEUE.fullmatch(value):
        raise UsageError(f"{name} must be 1 to 255 of A-Z a-z 0-9 _ . -: {value!r}")
    return value


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise UsageError(f"{name} must be a text that is not empty: {value!r}")
    return value


def _weights(name: str, value: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    if len(value) > MAX_WEIGHTS:
        raise UsageError(f"{name} must be of at most {MAX_WEIGHTS} keys, not {len(value)}")
    read = _between(1, MAX_WEIGHT)
    return tuple((key_name(_text("a key", key)), read(name, value[key])) for key in sorted(value))


def _errors(name: str, value: Any) -> tuple[type[Exception], ...]:
    found = value if isinstance(value, tuple) else (value,)
    if not all(isinstance(each, type) and issubclass(each, Exception) for each in found):
        raise UsageError(f"{name} must be an exception class, or a tuple of them: {value!r}")
    return found


def _reporter_words(text: str) -> tuple[str, ...]:
    """The words of what reports. Raises UsageError."""
    # Few tasks have such words, and the grammar takes its time to import.
    from journeyman.protocols.ztick.grammar import read_reporter
    from journeyman.timetables.run_options import read_words

    try:
        read = read_words("on_failure", text)
    except JourneymanError as error:
        raise UsageError(str(error)) from None
    if isinstance(problem := read_reporter(read), str):
        raise UsageError(f"on_failure: {problem}")
    if read[0] in _OF_SERVERS:
        raise UsageError(f"on_failure: {read[0]} is not possible here; name a task instead")
    return read


def _reporter(name: str, value: Any) -> Any:
    if isinstance(value, str):
        return _reporter_words(value)
    if not hasattr(value, "defaults") or not hasattr(value, "bind"):
        raise UsageError(f"{name} must be a task or text such as 'mail ops@example.com': {value!r}")
    return value


_CHECKS: dict[str, tuple[str, Any]] = {
    "queue": ("queue", _queue),
    "retries": ("retries", _between(0, MAX_RETRIES)),
    "backoff": ("backoff", as_backoff),
    "retry_on": ("retry_on", _optional(_errors)),
    "timeout": ("timeout_s", _optional(time_between(0.001, MAX_DELAY_S))),
    "unique": ("unique", _optional(_text)),
    "unique_for": ("unique_for_s", _optional(time_between(0.001, MAX_TTL_S))),
    "debounce": ("debounce_s", _optional(time_between(0.001, MAX_TTL_S))),
    "rate": ("rate", _optional(lambda _name, value: Rate.parse(value))),
    "concurrency": ("concurrency", _optional(_between(1, 1_000_000))),
    "key": ("key", _optional(_text)),
    "key_rate": ("key_rate", _optional(lambda _name, value: Rate.parse(value))),
    "fair": ("fair", _optional(_text)),
    "weights": ("weights", lambda name, value: _weights(name, value or {})),
    "priority": ("priority", _between(-(2**31), 2**31 - 1)),
    "lease": ("lease_s", time_between(0.1, MAX_DELAY_S)),
    "ttl": ("ttl_s", time_between(1, MAX_TTL_S)),
    "on_failure": ("on_failure", _optional(_reporter)),
}
