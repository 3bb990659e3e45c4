"""Readers of the workq protocol: words, flags and payload of a command -> itself, or RefusedLine.

``words[0]`` is the command and their number has been checked; ``flags`` have keys and values. A
command that is only a line takes no flags. The checks stand in the order in which the original
complains: first what each field is, then whether it is in range. Unknown flags are passed over,
but only so many may be there.

The fields of a line, bytes -> values; what is not such a value is None:

    id        at least 32 characters: urn:uuid: or { or nothing, then hex groups of 8-4-4-4-12, each
              after a dash or not, in any case; what follows is not looked at
    name      1 to 255 of A-Z a-z 0-9 _ . -
    number    digits, leading zeros allowed, no sign; priority and size may have one
    time      YYYY-MM-DDTHH:MM:SSZ, with one digit for the hour or a fraction after a point or a
              comma, of which 9 digits count, if you like; no other offset, no second 60
    flag      -key=value; what follows a second = is not looked at

So lenient, because the original is, and its clients may rely on it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import NamedTuple, TypeAlias

import msgspec

from journeyman.protocols.workq import commands
from journeyman.units import DAY_S, NS_PER_S

HUGE = 10**20  # stands for every number that has more digits than fit into 64 bits
_DIGITS_OF_HUGE = 20
NO_TIME_NS = -62_135_596_800 * NS_PER_S  # the year 1: what the original takes for "no time"

_HEX = rb"[0-9a-fA-F]"
_ID = re.compile(
    rb"(?:urn:uuid:|\{)?" + b"".join(rb"-?(%b{%d})" % (_HEX, count) for count in (8, 4, 4, 4, 12)),
)
_NAME = re.compile(rb"[A-Za-z0-9_.-]{1,%d}" % commands.MAX_NAME_BYTES)
_STEP_NAME = re.compile(rb"[A-Za-z0-9_.:/@-]{1,%d}" % commands.MAX_NAME_BYTES)
_TIME = re.compile(
    rb"([0-9]{4})-([0-9]{2})-([0-9]{2})T([0-9]{1,2}):([0-9]{2}):([0-9]{2})(?:[.,]([0-9]+))?Z"
)


def read_id(text: bytes) -> bytes | None:
    """16 raw bytes, of whatever version."""
    match = _ID.match(text)
    return None if match is None else bytes.fromhex(b"".join(match.groups()).decode())


def is_version_4(job_id: bytes) -> bool:
    return job_id[6] >> 4 == 4 and job_id[8] >> 6 == 2


def read_name(text: bytes) -> str | None:
    return text.decode() if _NAME.fullmatch(text) else None


def read_step_name(text: bytes) -> str | None:
    """Read the name of a step or an event."""
    return text.decode() if _STEP_NAME.fullmatch(text) else None


def read_number(text: bytes) -> int | None:
    if not text.isdigit():
        return None
    if len(text) > _DIGITS_OF_HUGE:
        text = text.lstrip(b"0") or b"0"
        if len(text) > _DIGITS_OF_HUGE:
            return HUGE
    return int(text)


def read_size(text: bytes) -> int | None:
    """A size of bytes; None also if it is below 0."""
    signed = text[:1] in (b"+", b"-")
    number = read_number(text[1:] if signed else text)
    return None if number and text.startswith(b"-") else number


def read_priority(text: bytes) -> int | None:
    signed = text[:1] in (b"+", b"-")
    number = read_number(text[1:] if signed else text)
    if number is None:
        return None
    priority = -number if text.startswith(b"-") else number
    return priority if commands.MIN_PRIORITY <= priority <= commands.MAX_PRIORITY else None


def read_time(text: bytes) -> int | None:
    """Unix time in nanoseconds; NO_TIME_NS means: at once."""
    match = _TIME.fullmatch(text)
    if match is None:
        return None
    *calendar, fraction = match.groups()
    try:
        moment = datetime(*map(int, calendar), tzinfo=UTC)  # type: ignore[misc,arg-type]
    except ValueError:  # a day or an hour that does not exist
        return None
    whole = moment - datetime(1970, 1, 1, tzinfo=UTC)
    nanos = int((fraction or b"")[:9].ljust(9, b"0"))
    return (whole.days * DAY_S + whole.seconds) * NS_PER_S + nanos


def read_flags(pieces: Iterable[bytes]) -> dict[bytes, bytes] | None:
    """``-key=value`` each; None if a key or a value is empty, or a key comes twice."""
    flags: dict[bytes, bytes] = {}
    for piece in pieces:
        key, value, *_ = piece[1:].split(b"=")
        if not key or not value or key in flags:
            return None
        flags[key] = value
    return flags


Tokens: TypeAlias = list[bytes]
Flags: TypeAlias = dict[bytes, bytes]
LineReader: TypeAlias = Callable[[Tokens], commands.Event]
FlagReader: TypeAlias = Callable[[Tokens, Flags], commands.Event]
PayloadReader: TypeAlias = Callable[[Tokens, Flags, bytes], commands.Event]

MAX_JOB_FLAGS = 3  # besides the flags below, which the original does not know
MAX_RUN_FLAGS = 1
RETRY_DELAY = b"retry-delay"
_OPTIONS = frozenset(
    {b"key", b"replace", b"unique-for", b"after", b"even-failed", b"then", b"follows", b"unless"}
)
_NEW_FLAGS = _OPTIONS | {RETRY_DELAY}
_LEASE_FLAGS = frozenset({b"max", b"worker"})
_LIMIT_FLAGS = frozenset(
    {b"rate", b"concurrency", b"key-rate", b"key-concurrency", b"fair", b"weights"}
)
RATE = re.compile(rb"([0-9]{1,9})/([0-9]{0,9})(ms|s|m|h|d)")
_UNITS_MS = {b"ms": 1, b"s": 1000, b"m": 60_000, b"h": 3_600_000, b"d": 86_400_000}
_ID_CHARACTERS = 36  # in a list only as it is printed: with dashes
_MAX_U32 = 2**32 - 1
_MAX_U64 = 2**64 - 1

_FACTS = msgspec.json.Decoder(commands.WorkerFacts)
_WAIT = msgspec.json.Decoder(commands.JobWait)
_NOTES = msgspec.json.Decoder(commands.WorkerNotes)
_NO = {complaint: commands.RefusedLine(complaint) for complaint in commands.Complaint}


class _Numbers(NamedTuple):
    job_id: bytes
    ttr_ms: int
    ttl_ms: int


class _Options(NamedTuple):
    """The flags of add and schedule, as those commands hold them."""

    priority: int = 0
    max_attempts: int = 0
    max_fails: int = 0
    retry_delay_ms: int = 0
    options: commands.AddOptions | None = None


_NO_OPTIONS = _Options()


# -- commands with a payload ----------------------------------------------------------------------


def add(tokens: Tokens, flags: Flags, payload: bytes) -> commands.Event:
    _, id_text, name, ttr, ttl, _ = tokens
    if flags and _too_many(flags):
        return _NO[commands.Complaint.ARGS]
    numbers = _read_numbers(id_text, ttr, ttl)
    if isinstance(numbers, commands.RefusedLine):
        return numbers
    options = _read_options(flags) if flags else _NO_OPTIONS
    if isinstance(options, commands.RefusedLine):
        return options
    if _is_too_large(options, payload):
        return _NO[commands.Complaint.PAYLOAD_SIZE]
    if options.options is not None and numbers.job_id in options.options.after:
        return _NO[commands.Complaint.PARENTS]
    return _out_of_range(name, numbers) or commands.Add(
        numbers.job_id, name.decode(), numbers.ttr_ms, numbers.ttl_ms, payload, *options
    )


def schedule(tokens: Tokens, flags: Flags, payload: bytes) -> commands.Event:
    """A time that the original takes for none makes it an add, as it does there."""
    _, id_text, name, ttr, ttl, time, _ = tokens
    if flags and _too_many(flags):
        return _NO[commands.Complaint.ARGS]
    numbers = _read_numbers(id_text, ttr, ttl)
    if isinstance(numbers, commands.RefusedLine):
        return numbers
    time_ns = read_time(time)
    if time_ns is None:
        return _NO[commands.Complaint.TIME]
    options = _read_options(flags) if flags else _NO_OPTIONS
    if isinstance(options, commands.RefusedLine):
        return options
    if options.options is not None and options.options.after:
        return _NO[commands.Complaint.PARENTS]  # it waits for a time, or for jobs
    if _is_too_large(options, payload):
        return _NO[commands.Complaint.PAYLOAD_SIZE]
    refused = _out_of_range(name, numbers)
    if refused is not None:
        return refused
    job_id, ttr_ms, ttl_ms = numbers
    if time_ns == NO_TIME_NS:
        return commands.Add(job_id, name.decode(), ttr_ms, ttl_ms, payload, *options)
    return commands.ScheduleJob(job_id, name.decode(), ttr_ms, ttl_ms, time_ns, payload, *options)


def run(tokens: Tokens, flags: Flags, payload: bytes) -> commands.Event:
    _, id_text, name, ttr, wait, _ = tokens
    if len(flags) > MAX_RUN_FLAGS:
        return _NO[commands.Complaint.ARGS]
    numbers = _read_numbers(id_text, ttr, b"1")
    if isinstance(numbers, commands.RefusedLine):
        return numbers
    priority = read_priority(flags.get(b"priority", b"0"))
    if priority is None:
        return _NO[commands.Complaint.PRIORITY]
    wait_ms = _read_wait(wait)
    if wait_ms is None:
        return _NO[commands.Complaint.WAIT]
    return _out_of_range(name, numbers) or commands.RunJob(
        numbers.job_id, name.decode(), numbers.ttr_ms, wait_ms, payload, priority
    )


def complete(tokens: Tokens, flags: Flags, payload: bytes) -> commands.Event:
    attempt = 0
    if flags:
        if flags.keys() != {b"attempt"}:
            return _NO[commands.Complaint.ARGS]
        attempt = _read_up_to(flags[b"attempt"], _MAX_U32) or 0
        if not attempt:
            return _NO[commands.Complaint.ATTEMPT]
    job_id = read_id(tokens[1])
    if job_id is None or not is_version_4(job_id):
        return _NO[commands.Complaint.ID]
    return commands.Complete(job_id, payload, attempt)


def fail(tokens: Tokens, flags: Flags, payload: bytes) -> commands.Event:
    delay_ms = None
    if b"delay" in flags:
        delay_ms = _read_up_to(flags[b"delay"], commands.MAX_RETRY_DELAY_MS)
        if delay_ms is None:
            return _NO[commands.Complaint.DELAY]
    if flags.get(b"final", b"1") != b"1" or flags.get(b"release", b"1") != b"1":
        return _NO[commands.Complaint.ARGS]
    if b"final" in flags and b"release" in flags:
        return _NO[commands.Complaint.ARGS]
    own = (b"delay", b"final", b"release")
    others = {key: value for key, value in flags.items() if key not in own}
    read = complete(tokens, others, payload)
    if not isinstance(read, commands.Complete):
        return read
    return commands.Fail(
        read.job_id, payload, delay_ms, read.attempt, b"final" in flags, b"release" in flags
    )


def worker(tokens: Tokens, flags: Flags, payload: bytes) -> commands.Event:
    name = read_name(tokens[1])
    wait_ms = _read_wait(tokens[2])
    if flags:
        return _NO[commands.Complaint.ARGS]
    if name is None:
        return _NO[commands.Complaint.WORKER]
    if wait_ms is None:
        return _NO[commands.Complaint.WAIT]
    if len(payload) > commands.MAX_FACTS_BYTES:
        return _NO[commands.Complaint.PAYLOAD_SIZE]
    try:
        facts = _FACTS.decode(payload)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return _NO[commands.Complaint.FACTS]
    return commands.AwaitOrders(name, wait_ms, facts)


def progress(tokens: Tokens, flags: Flags, payload: bytes) -> commands.Event:
    job_id = read_id(tokens[1])
    if flags:
        return _NO[commands.Complaint.ARGS]
    if job_id is None:
        return _NO[commands.Complaint.ID]
    if len(payload) > commands.MAX_NOTES_BYTES:
        return _NO[commands.Complaint.PAYLOAD_SIZE]
    try:
        notes = _NOTES.decode(payload)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return _NO[commands.Complaint.NOTES]
    return commands.NoteProgress(job_id, notes)


def step(tokens: Tokens, flags: Flags, payload: bytes) -> commands.Event:
    job_id, name = read_id(tokens[1]), read_step_name(tokens[2])
    number = _read_up_to(tokens[3], _MAX_U32)
    if flags.keys() != {b"attempt"}:
        return _NO[commands.Complaint.ARGS]
    if job_id is None:
        return _NO[commands.Complaint.ID]
    if name is None:
        return _NO[commands.Complaint.NAME]
    if not number:
        return _NO[commands.Complaint.STEP_NUMBER]
    attempt = _read_up_to(flags[b"attempt"], _MAX_U32)
    if not attempt:
        return _NO[commands.Complaint.ATTEMPT]
    if len(payload) > commands.MAX_STEP_BYTES:
        return _NO[commands.Complaint.PAYLOAD_SIZE]
    return commands.RecordStep(job_id, name, number, payload, attempt)


def park(tokens: Tokens, flags: Flags, payload: bytes) -> commands.Event:
    job_id = read_id(tokens[1])
    if flags.keys() != {b"attempt"}:
        return _NO[commands.Complaint.ARGS]
    if job_id is None:
        return _NO[commands.Complaint.ID]
    attempt = _read_up_to(flags[b"attempt"], _MAX_U32)
    if not attempt:
        return _NO[commands.Complaint.ATTEMPT]
    wait = read_wait(payload)
    return _NO[commands.Complaint.PARK] if wait is None else commands.Park(job_id, wait, attempt)


def read_wait(data: bytes) -> commands.JobWait | None:
    """Read the wait of a park. None: it is not one, or waits for nothing."""
    if len(data) > commands.MAX_WAIT_BYTES:
        return None
    try:
        wait = _WAIT.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    names = [wait.step, *([wait.event] if wait.event else [])]
    if not all(read_step_name(name.encode(errors="replace")) for name in names):
        return None
    if not 0 <= wait.until_ns < 2**63 or not 0 < wait.number <= _MAX_U32:
        return None
    if not 0 <= wait.within_ms <= commands.MAX_SLEEP_MS or (wait.within_ms and wait.until_ns):
        return None
    if len(wait.jobs) > commands.MAX_PARENTS or (wait.jobs and wait.event):
        return None
    if not all(len(text) == _ID_CHARACTERS and read_id(text.encode()) for text in wait.jobs):
        return None
    has_end = wait.until_ns or wait.within_ms or wait.event or wait.jobs
    return wait if has_end else None


def fork(tokens: Tokens) -> commands.Event:
    job_id, new_id, name = read_id(tokens[1]), read_id(tokens[2]), read_step_name(tokens[3])
    number = _read_up_to(tokens[4], _MAX_U32)
    if job_id is None or new_id is None or not is_version_4(new_id):
        return _NO[commands.Complaint.ID]
    if name is None:
        return _NO[commands.Complaint.NAME]
    if not number:
        return _NO[commands.Complaint.STEP_NUMBER]
    return commands.Fork(job_id, new_id, name, number)


def emit(tokens: Tokens, flags: Flags, payload: bytes) -> commands.Event:
    name = read_step_name(tokens[1])
    if flags:
        return _NO[commands.Complaint.ARGS]
    if name is None:
        return _NO[commands.Complaint.NAME]
    if len(payload) > commands.MAX_STEP_BYTES:
        return _NO[commands.Complaint.PAYLOAD_SIZE]
    return commands.Emit(name, payload)


# -- commands that are a line ---------------------------------------------------------------------


def lease(tokens: Tokens, flags: Flags) -> commands.Event:
    if not flags.keys() <= _LEASE_FLAGS:
        return _NO[commands.Complaint.ARGS]
    wait_ms = _read_wait(tokens[-1])
    if wait_ms is None:
        return _NO[commands.Complaint.WAIT]
    names = []
    for word in tokens[1:-1]:
        name = read_name(word)
        if name is None:
            return _NO[commands.Complaint.NAME]
        names.append(name)
    if not flags:
        return commands.Lease(tuple(names), wait_ms)
    max_jobs = _read_up_to(flags.get(b"max", b"0"), commands.MAX_LEASED)
    if max_jobs is None or (not max_jobs and b"max" in flags):
        return _NO[commands.Complaint.MAX_JOBS]
    worker = read_name(flags[b"worker"]) if b"worker" in flags else ""
    if worker is None:
        return _NO[commands.Complaint.WORKER]
    return commands.Lease(tuple(names), wait_ms, max_jobs, worker)


def inspect_steps(tokens: Tokens, flags: Flags) -> commands.Event:
    job_id = read_id(tokens[2])
    if flags and flags.keys() != {b"attempt"}:
        return _NO[commands.Complaint.ARGS]
    if job_id is None:
        return _NO[commands.Complaint.ID]
    attempt = _read_up_to(flags[b"attempt"], _MAX_U32) if flags else 0
    if attempt is None or (flags and not attempt):
        return _NO[commands.Complaint.ATTEMPT]
    return commands.InspectSteps(job_id, attempt)


def inspect_event(tokens: Tokens) -> commands.Event:
    name = read_step_name(tokens[2])
    return _NO[commands.Complaint.NAME] if name is None else commands.InspectEvent(name)


def touch(tokens: Tokens) -> commands.Event:
    if len(tokens) > 3:
        return _NO[commands.Complaint.ARGS]
    job_id = read_id(tokens[1])
    if job_id is None:
        return _NO[commands.Complaint.ID]
    if len(tokens) == 2:
        return commands.Touch(job_id)
    ttr_ms = _read_up_to(tokens[2], commands.MAX_TTR_MS)
    return commands.Touch(job_id, ttr_ms) if ttr_ms else _NO[commands.Complaint.TTR]


def requeue_all(tokens: Tokens) -> commands.Event:
    name = read_name(tokens[1])
    if name is None:
        return _NO[commands.Complaint.NAME]
    limit = _read_up_to(tokens[2], commands.MAX_REQUEUED)
    return commands.RequeueAll(name, limit) if limit else _NO[commands.Complaint.LIMIT]


def limit(tokens: Tokens, flags: Flags) -> commands.Event:
    """Read the limits of a queue. Without flags there are no limits."""
    name = read_name(tokens[1])
    if name is None:
        return _NO[commands.Complaint.NAME]
    if not flags.keys() <= _LIMIT_FLAGS:
        return _NO[commands.Complaint.ARGS]
    rate = _read_rate(flags[b"rate"]) if b"rate" in flags else (0, 0)
    key_rate = _read_rate(flags[b"key-rate"]) if b"key-rate" in flags else (0, 0)
    if rate is None or key_rate is None:
        return _NO[commands.Complaint.RATE]
    counts = []
    for flag in (b"concurrency", b"key-concurrency"):
        count = _read_up_to(flags.get(flag, b"0"), commands.MAX_CONCURRENCY)
        if count is None or (not count and flag in flags):
            return _NO[commands.Complaint.CONCURRENCY]
        counts.append(count)
    weights = _read_weights(flags[b"weights"]) if b"weights" in flags else {}
    fair = flags.get(b"fair", b"0")
    if weights is None or fair not in (b"0", b"1") or (weights and fair != b"1"):
        return _NO[commands.Complaint.FAIR]
    limits = commands.Limits(*rate, counts[0], counts[1], *key_rate, fair == b"1", weights)
    return commands.SetLimits(name, limits)


def _read_weights(text: bytes) -> dict[str, int] | None:
    """``gold:3,silver:2``."""
    found: dict[str, int] = {}
    for pair in text.split(b","):
        key_text, _, number = pair.partition(b":")
        key, weight = read_name(key_text), _read_up_to(number, commands.MAX_WEIGHT)
        if key is None or not weight or key in found or len(found) == commands.MAX_WEIGHTS:
            return None
        found[key] = weight
    return found


def result(tokens: Tokens) -> commands.Event:
    job_id = read_id(tokens[1])
    if job_id is None or not is_version_4(job_id):
        return _NO[commands.Complaint.ID]
    wait_ms = _read_wait(tokens[2])
    return (
        _NO[commands.Complaint.WAIT] if wait_ms is None else commands.AwaitResult(job_id, wait_ms)
    )


def of_an_id(command: Callable[[bytes], commands.Event]) -> LineReader:
    """Return the reader of a command that takes one id, of whatever version, and nothing else."""

    def read(tokens: Tokens) -> commands.Event:
        job_id = read_id(tokens[-1])
        return _NO[commands.Complaint.ID] if job_id is None else command(job_id)

    return read


def of_a_name(command: Callable[[str], commands.Event]) -> LineReader:
    def read(tokens: Tokens) -> commands.Event:
        name = read_name(tokens[-1])
        return _NO[commands.Complaint.NAME] if name is None else command(name)

    return read


def of_a_page(command: Callable[[int, int], commands.Event]) -> LineReader:
    """Return the reader of ``inspect THINGS OFFSET LIMIT``."""

    def read(tokens: Tokens) -> commands.Event:
        page = _read_page(tokens[2:])
        return page if isinstance(page, commands.RefusedLine) else command(*page)

    return read


def queues(tokens: Tokens, flags: Flags) -> commands.Event:
    if flags and flags != {b"counts": b"1"}:
        return _NO[commands.Complaint.ARGS]
    page = _read_page(tokens[2:])
    if isinstance(page, commands.RefusedLine):
        return page
    return commands.InspectQueues(*page, with_counts=bool(flags))


def of_a_page_of(command: Callable[[str, int, int], commands.Event]) -> LineReader:
    """Return the reader of ``inspect THINGS NAME OFFSET LIMIT``."""

    def read(tokens: Tokens) -> commands.Event:
        name = read_name(tokens[2])
        if name is None:
            return _NO[commands.Complaint.NAME]
        page = _read_page(tokens[3:])
        return page if isinstance(page, commands.RefusedLine) else command(name, *page)

    return read


# -- fields that several share --------------------------------------------------------------------


def _too_many(flags: Flags) -> bool:
    return len(flags) > MAX_JOB_FLAGS and len(flags.keys() - _NEW_FLAGS) > MAX_JOB_FLAGS


def _read_numbers(id_text: bytes, ttr: bytes, ttl: bytes) -> _Numbers | commands.RefusedLine:
    """Return what they are; a number that the original's type cannot hold is none. Ranges come
    later.
    """
    job_id = read_id(id_text)
    if job_id is None:
        return _NO[commands.Complaint.ID]
    ttr_ms = _read_up_to(ttr, _MAX_U32)
    if ttr_ms is None:
        return _NO[commands.Complaint.TTR]
    ttl_ms = _read_up_to(ttl, _MAX_U64)
    if ttl_ms is None:
        return _NO[commands.Complaint.TTL]
    return _Numbers(job_id, ttr_ms, ttl_ms)


def _out_of_range(name: bytes, numbers: _Numbers) -> commands.RefusedLine | None:
    if not is_version_4(numbers.job_id):
        return _NO[commands.Complaint.ID]
    if read_name(name) is None:
        return _NO[commands.Complaint.NAME]
    if not 1 <= numbers.ttr_ms <= commands.MAX_TTR_MS:
        return _NO[commands.Complaint.TTR]
    if not 1 <= numbers.ttl_ms <= commands.MAX_TTL_MS:
        return _NO[commands.Complaint.TTL]
    return None


def _read_options(flags: Flags) -> _Options | commands.RefusedLine:
    max_attempts = _read_up_to(flags.get(b"max-attempts", b"0"), commands.MAX_COUNT)
    if max_attempts is None:
        return _NO[commands.Complaint.MAX_ATTEMPTS]
    max_fails = _read_up_to(flags.get(b"max-fails", b"0"), commands.MAX_COUNT)
    if max_fails is None:
        return _NO[commands.Complaint.MAX_FAILS]
    priority = read_priority(flags.get(b"priority", b"0"))
    if priority is None:
        return _NO[commands.Complaint.PRIORITY]
    retry_delay_ms = _read_up_to(flags.get(RETRY_DELAY, b"0"), commands.MAX_RETRY_DELAY_MS)
    if retry_delay_ms is None:
        return _NO[commands.Complaint.RETRY_DELAY]
    if _OPTIONS.isdisjoint(flags):
        return _Options(priority, max_attempts, max_fails, retry_delay_ms)
    options = _read_new_options(flags)
    if isinstance(options, commands.RefusedLine):
        return options
    return _Options(priority, max_attempts, max_fails, retry_delay_ms, options)


def usual_options(flags: bytes) -> _Options | None:
    """Read flags written as `` -key=value``; return None if any of them is invalid."""
    found = read_flags(flags.split())
    options = None if found is None else _read_options(found)
    return options if isinstance(options, _Options) else None


def _read_new_options(flags: Flags) -> commands.AddOptions | commands.RefusedLine:
    key = read_name(flags[b"key"]) if b"key" in flags else ""
    if key is None:
        return _NO[commands.Complaint.KEY]
    replaced = flags.get(b"replace", b"finished")
    if replaced not in (b"finished", b"different", b"unstarted"):
        return _NO[commands.Complaint.REPLACE]
    unique_ms = _read_up_to(flags.get(b"unique-for", b"0"), commands.MAX_TTL_MS)
    if unique_ms is None or (b"unique-for" in flags and b"replace" not in flags):
        return _NO[commands.Complaint.UNIQUE_FOR]
    after: tuple[bytes, ...] = ()
    if b"after" in flags:
        texts = flags[b"after"].split(b",", commands.MAX_PARENTS)
        ids = [read_id(text) for text in texts if len(text) == _ID_CHARACTERS]
        if None in ids or len(ids) != len(texts) or len(texts) > commands.MAX_PARENTS:
            return _NO[commands.Complaint.PARENTS]
        after = tuple(dict.fromkeys(each for each in ids if each is not None))
    if flags.get(b"even-failed", b"1") != b"1" or (b"even-failed" in flags and not after):
        return _NO[commands.Complaint.EVEN_FAILED]
    if flags.get(b"then", b"1") != b"1":
        return _NO[commands.Complaint.THEN]
    follows = read_id(flags[b"follows"]) if b"follows" in flags else b""
    if follows is None:
        return _NO[commands.Complaint.FOLLOWS]
    is_moved = replaced == b"unstarted"
    unless = read_id(flags[b"unless"]) if b"unless" in flags else b""
    if unless is None or (unless and not is_moved):
        return _NO[commands.Complaint.UNLESS]
    if is_moved and after:  # it waits for a time, or for jobs
        return _NO[commands.Complaint.PARENTS]
    even_failed, unless_same = b"even-failed" in flags, replaced == b"different"
    uniqueness = unique_ms, unless_same
    return commands.AddOptions(
        *(key, b"replace" in flags, after, even_failed, *uniqueness, b"then" in flags, follows),
        replaces_unstarted=is_moved,
        unless=unless,
    )


def _is_too_large(options: _Options, payload: bytes) -> bool:
    """Return whether the ledger could not hold the job, as it must for a while."""
    more = options.options
    is_kept = more is not None and (more.after or more.replaces_unstarted)
    return bool(is_kept) and len(payload) > commands.MAX_CHILD_BYTES


def _read_rate(text: bytes) -> tuple[int, int] | None:
    """``10/m``, ``1/30s``: starts, and milliseconds in which there are no more than these."""
    match = RATE.fullmatch(text)
    if match is None:
        return None
    rate, per_ms = int(match[1]), int(match[2] or b"1") * _UNITS_MS[match[3]]
    is_usable = 1 <= rate <= commands.MAX_RATE and 1 <= per_ms <= commands.MAX_RATE_PERIOD_MS
    return (rate, per_ms) if is_usable else None


def _read_wait(text: bytes) -> int | None:
    return _read_up_to(text, commands.MAX_WAIT_MS)


def _read_page(tokens: Tokens) -> tuple[int, int] | commands.RefusedLine:
    offset = _read_up_to(tokens[0], commands.MAX_CURSOR_OFFSET)
    if offset is None:
        return _NO[commands.Complaint.CURSOR_OFFSET]
    limit = _read_up_to(tokens[1], commands.MAX_LISTED)
    return _NO[commands.Complaint.LIMIT] if not limit else (offset, limit)


def _read_up_to(text: bytes, limit: int) -> int | None:
    number = read_number(text)
    return number if number is not None and number <= limit else None
