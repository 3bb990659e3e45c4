"""The life of a job as bars on a time axis: it waited, attempts ran, steps were recorded.

    log records, recorded steps, the job now --> rows of JobTrace --work_job.html--> SVG

Times of attempts and of parks are those of the log's records, so they are exact. Of a step only
its end is known: it began when the attempt did, or when the step before it ended.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from journeyman.protocols.workq.readers import read_wait
from journeyman.protocols.workq.replies import JobView
from journeyman.servers.http.console import shown
from journeyman.servers.http.v1.values import JobStep, LogRecord
from journeyman.units import DAY_S, NS_PER_S

MOST_TICKS: Final = 6
# Distances between the ticks of an axis, in seconds.
_TICKS_S: Final = (
    *(amount / scale for scale in (1000, 100, 10) for amount in (1, 2, 5)),
    *(1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 4 * 3600, 12 * 3600),
    *(days * DAY_S for days in (1, 2, 5, 10, 20, 50, 100)),
)
MOST_ROWS: Final = 200
_END_WORDS: Final = {"timeout-attempt": "lease ended", "park": "parked"}
_BEGINS: Final = ("add", "schedule")
_ENDS: Final = {"complete": "run", "fail": "fail", "timeout-attempt": "fail", "park": "run"}


class TraceRow(NamedTuple):
    """``look`` is the class of its bar; x and width are percentages of the axis."""

    kind: str  # attempt, step or wait
    name: str
    note: str
    look: str
    x: float
    width: float
    seconds: float
    words: str = ""  # beside the bar


@dataclass(slots=True)
class TraceSpan:
    kind: str
    name: str
    look: str
    from_ns: int
    until_ns: int
    note: str = ""
    words: str = ""
    result: bytes = b""  # the words of the worker about a failure


@dataclass(frozen=True, slots=True)
class JobTrace:
    rows: list[TraceRow]
    ticks: list[tuple[float, str]]
    begin_ns: int
    now: float | None  # percentage of the axis; None: the job has ended
    attempts: int
    failed: list[TraceSpan] = field(default_factory=list)


def trace_of(
    records: Sequence[LogRecord], steps: Sequence[JobStep], job: JobView | None, now_ns: int
) -> JobTrace | None:
    """Draw the last life of the job. None: the log has too little to draw."""
    timed = [(each.time_ns, each) for each in records if each.time_ns is not None]
    begins = [index for index, (_, each) in enumerate(timed) if each.kind in _BEGINS]
    if not begins:
        return None
    timed = timed[begins[-1] :]
    has_ended = job is None or job.finished_ns is not None
    end_ns = timed[-1][0] if has_ended else max(now_ns, timed[-1][0])
    spans = _spans(timed, None if has_ended else end_ns, job)
    _add_steps(spans, steps, end_ns)
    begin_ns = timed[0][0]
    whole = max(1, end_ns - begin_ns) * (1.0 if has_ended else 1.02)
    rows = [
        TraceRow(
            span.kind, span.name, span.note, span.look, 100 * (span.from_ns - begin_ns) / whole,
            max(0.15, 100 * (span.until_ns - span.from_ns) / whole),
            (span.until_ns - span.from_ns) / NS_PER_S, span.words,
        )
        for span in spans[:MOST_ROWS]
    ]  # fmt: skip
    attempts = [span for span in spans if span.kind == "attempt"]
    return JobTrace(
        rows,
        _ticks(whole / NS_PER_S),
        begin_ns,
        None if has_ended else 100 * (end_ns - begin_ns) / whole,
        len(attempts),
        [span for span in attempts if span.look == "fail"],
    )


def _ticks(whole_s: float) -> list[tuple[float, str]]:
    """Where round times are, in percent, but for the end of the axis."""
    step_s = next((s for s in _TICKS_S if whole_s / s <= MOST_TICKS), whole_s / MOST_TICKS)
    return [
        (100 * tick * step_s / whole_s, f"+{shown.duration(tick * step_s)}")
        for tick in range(1, MOST_TICKS + 1)
        if tick * step_s < 0.96 * whole_s
    ]


def result_of(record: LogRecord) -> bytes:
    """Return the words of the worker, as far as the first bytes of the record hold them."""
    data = bytes.fromhex(record.bytes_hex)
    text = data[data.find(b'{"error"') :].decode("utf-8", "replace")
    if not text.startswith("{"):
        return record.text.encode()
    try:
        _, end = json.JSONDecoder().raw_decode(text)
    except ValueError:  # a long one, which is cut
        return record.text.encode()
    return text[:end].encode()


def _spans(
    timed: list[tuple[int, LogRecord]], until_ns: int | None, job: JobView | None
) -> list[TraceSpan]:
    """``until_ns``: how long what has not ended lasts so far."""
    spans: list[TraceSpan] = []
    waits_since, number, waits_for = timed[0][0], 0, "waited"
    for time_ns, record in timed[1:]:
        kind = record.kind
        if kind in ("start-attempt", "wake"):
            spans.append(TraceSpan("wait", waits_for, "wait", waits_since, time_ns))
            waits_since, waits_for = time_ns, "waited for a worker"
        if kind == "start-attempt":
            waits_for = "waited for the next attempt"
            number += 1
            note = record.worker or ""
            spans.append(TraceSpan("attempt", f"Attempt {number}", "live", time_ns, time_ns, note))
        elif kind in _ENDS and spans and spans[-1].look == "live":
            spans[-1].until_ns, spans[-1].look = time_ns, _ENDS[kind]
            spans[-1].words = _END_WORDS.get(kind, "")
            if kind == "park":
                wait = read_wait(record.text.encode(errors="replace"))
                waits_for = "parked" if wait is None else f"parked {shown.wait_words(wait)}"
            if kind == "fail":
                spans[-1].result = result_of(record)
                spans[-1].words = shown.error_line(spans[-1].result).partition(":")[0]
            waits_since = time_ns
    if spans and spans[-1].look == "live":
        spans[-1].until_ns = until_ns if until_ns is not None else timed[-1][0]
        spans[-1].words = "running" if until_ns is not None else ""
    elif until_ns is not None:
        name = waits_for if waits_for.startswith("parked") else "waits"
        spans.append(TraceSpan("wait", name, "wait", waits_since, until_ns))
    if job is not None and job.worker:
        last = next((span for span in reversed(spans) if span.kind == "attempt"), None)
        if last is not None:
            last.note = job.worker
    return spans


def _add_steps(spans: list[TraceSpan], steps: Sequence[JobStep], end_ns: int) -> None:
    """Put each step below the attempt in which it was done."""
    attempts = [span for span in spans if span.kind == "attempt"]
    for attempt in reversed(attempts):
        until_ns = attempt.until_ns if attempt.look != "live" else end_ns
        began_ns, place = attempt.from_ns, spans.index(attempt) + 1
        for step in steps:
            if attempt.from_ns <= step.done_ns <= until_ns:
                name = step.name if step.number == 1 else f"{step.name} {step.number}"
                spans.insert(place, TraceSpan("step", name, "step", began_ns, step.done_ns))
                began_ns, place = step.done_ns, place + 1
