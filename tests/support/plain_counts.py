"""The views of the counting law once more, as loops over rows: what DuckDB and Spark must answer.

Each function takes rows of attempts as dictionaries and gives the rows of the view of its name, a
dictionary for each, in any order. The rules are those of docs/pipeline.md in the simplest form that
is right for small logs. Not a test itself.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

from journeyman.formats import ledger
from journeyman.spark.views import COUNTS, STATES

Row = Mapping[str, Any]
Keys = Callable[[Row], dict[str, Any]]
MOST = 2**63 - 1
PERCENTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p999": 0.999}
ENDS = {
    "completed": "completed",
    "executed": "completed",
    "failed": "failed",
    "timed-out": "timed_out",
    "cut-off": "cut_off",
    "expired": "expired",
    "deleted": "deleted",
    "replaced": "deleted",
    "cancelled": "cancelled",
}
FAILURES = ("failed", "timed-out", "cut-off")
SUCCESSES = ("completed", "executed")


def attempts_at(rows: Sequence[Row], as_of_ns: int | None) -> list[dict[str, Any]]:
    found = []
    for given in rows:
        row = dict(given)
        if (
            row["outcome"] in ("waiting", "leased")
            and as_of_ns is not None
            and row["expires_ns"] is not None
            and row["expires_ns"] <= as_of_ns
        ):
            row |= {"outcome": "expired", "ended_ns": row["expires_ns"]}
        row["wait_ns"] = length(row["ready_ns"], row["started_ns"])
        row["run_ns"] = length(row["started_ns"], row["ended_ns"])
        is_schedule = row["dialect"] == "ztick"
        ends_unrecorded = is_schedule and row["outcome"] in ("executed", "failed")
        row["counted_end_ns"] = row["ended_ns"]
        if row["ended_ns"] is None and ends_unrecorded:
            row["counted_end_ns"] = row["ready_ns"]
        happens = row["first"] and row["outcome"] not in ("replanned", "removed")
        row["is_plan"] = is_schedule and happens
        row["is_job"] = happens if is_schedule else row["first"] and row["created_ns"] is not None
        row["is_success"] = row["outcome"] in SUCCESSES
        row["is_failure"] = row["outcome"] in FAILURES
        found.append(row)
    return found


def length(begin: int | None, end: int | None) -> int | None:
    if begin is None or end is None or end - begin > MOST:
        return None
    return max(end - begin, 0)


def bucket(ns: int, bucket_ns: int | None) -> int | None:
    if bucket_ns is None:
        return None
    return max(ns, bucket_ns - MOST) // bucket_ns * bucket_ns


def happenings(rows: Sequence[Row], keys: Keys, until_ns: int) -> list[dict[str, Any]]:
    found = []
    for row in rows:
        happened = [
            ("added", row["created_ns"] if row["first"] else None),
            ("due", row["ready_ns"] if row["is_plan"] else None),
            ("started", row["started_ns"]),
            (ENDS.get(row["outcome"]), row["counted_end_ns"]),
        ]
        for what, ns in happened:
            if what is not None and ns is not None and ns <= until_ns:
                found.append({**keys(row), "what": what, "ns": ns})
    return found


def throughput(
    rows: Sequence[Row], keys: Keys, bucket_ns: int, until_ns: int
) -> list[dict[str, Any]]:
    counts: dict[Any, Counter[str]] = defaultdict(Counter)
    for each in happenings(rows, keys, until_ns):
        what, ns = each.pop("what"), each.pop("ns")
        counts[(*each.items(), ("bucket_ns", bucket(ns, bucket_ns)))][what] += 1
    return [dict(key) | {name: each[name] for name in COUNTS} for key, each in counts.items()]


def depth_changes(
    rows: Sequence[Row], keys: Keys, bucket_ns: int, until_ns: int
) -> list[dict[str, Any]]:
    sums: dict[Any, Counter[str]] = defaultdict(Counter)
    for row in rows:
        for state, step, ns in steps_of(row):
            if ns is not None and ns <= until_ns:
                key = (*keys(row).items(), ("bucket_ns", bucket(ns, bucket_ns)))
                sums[key][state] += step
    return [dict(key) | {name: each[name] for name in STATES} for key, each in sums.items()]


def steps_of(row: Row) -> Iterator[tuple[str, int, int | None]]:
    if row["outcome"] in ("finished", "replanned", "removed") or row["life"] == 0:
        return
    if row["outcome"] in ("executed", "failed") and row["ended_ns"] is None:
        return
    began = row["started_ns"]
    if began is None and row["outcome"] == "triggered":
        began = row["ready_ns"]
    left = row["ended_ns"] if began is None else began
    ready = min((ns for ns in (row["ready_ns"], left) if ns is not None), default=None)
    if row["dialect"] == "ztick" and not row["first"]:
        ready = began
    created = row["created_ns"]
    if row["first"] and created is not None and ready is not None and created < ready:
        yield "scheduled", 1, created
        yield "scheduled", -1, ready
    if ready is not None:
        yield "ready", 1, ready
        yield "ready", -1, left
    if began is not None:
        yield "running", 1, began
        yield "running", -1, row["ended_ns"]


def depth(rows: Sequence[Row], keys: Keys, bucket_ns: int, until_ns: int) -> list[dict[str, Any]]:
    of_key: dict[Any, list[dict[str, Any]]] = defaultdict(list)
    for change in depth_changes(rows, keys, bucket_ns, until_ns):
        named = tuple(
            (name, value) for name, value in change.items() if name not in (*STATES, "bucket_ns")
        )
        of_key[named].append(change)
    found = []
    for named, changes in of_key.items():
        changes.sort(key=lambda each: each["bucket_ns"])
        sums = {state: list(accumulate(each[state] for each in changes)) for state in STATES}
        for at, change in enumerate(changes):
            moment = {"bucket_ns": change["bucket_ns"]}
            found.append(dict(named) | moment | {state: sums[state][at] for state in STATES})
    return found


def rounded(ns: int | None) -> int | None:
    """Four digits, the rest are zeros."""
    if ns is None:
        return None
    text = str(ns)
    return int(text[:4] + "0" * (len(text) - 4)) if len(text) > 4 else ns


def percentile(lengths: Sequence[int], share: float) -> int | None:
    if not lengths:
        return None
    known = sorted(lengths)
    return known[max(math.ceil(round(share * 1000) * len(known) / 1000) - 1, 0)]


def latency(
    rows: Sequence[Row], keys: Keys, bucket_ns: int | None, until_ns: int
) -> list[dict[str, Any]]:
    of_key: dict[Any, list[Row]] = defaultdict(list)
    for row in rows:
        if row["started_ns"] is not None and row["started_ns"] <= until_ns:
            when = bucket(row["started_ns"], bucket_ns)
            of_key[*keys(row).items(), ("bucket_ns", when)].append(row)
    found = []
    for key, starts in of_key.items():
        answer = dict(key) | {
            "started": len(starts),
            "failed": sum(row["is_failure"] for row in starts),
            "late": sum((row["wait_ns"] or 0) > 10**9 for row in starts),
        }
        for what in ("wait", "run"):
            exact = [row[f"{what}_ns"] for row in starts if row[f"{what}_ns"] is not None]
            lengths = [ns for ns in map(rounded, exact) if ns is not None]
            for name, share in PERCENTILES.items():
                answer[f"{what}_{name}_ns"] = percentile(lengths, share)
            answer[f"{what}_max_ns"] = max(exact, default=None)
        found.append(answer)
    return found


def outcomes(rows: Sequence[Row], keys: Keys) -> list[dict[str, Any]]:
    of_key: dict[Any, list[Row]] = defaultdict(list)
    for row in rows:
        of_key[*keys(row).items(), ("outcome", row["outcome"])].append(row)
    found = []
    for key, same in of_key.items():
        names = ("created_ns", "started_ns", "counted_end_ns")
        moments = [row[name] for row in same for name in names if row[name] is not None]
        due = [row["ready_ns"] for row in same if row["is_plan"] and row["ready_ns"] is not None]
        found.append(
            dict(key)
            | {
                "attempts": len(same),
                "jobs": sum(row["is_job"] for row in same),
                "started": sum(row["started_ns"] is not None for row in same),
                "succeeded": sum(row["is_success"] for row in same),
                "failed": sum(row["is_failure"] for row in same),
                "unrecorded": sum(
                    row["ended_ns"] is None and row["counted_end_ns"] is not None for row in same
                ),
                "with_rule": sum(row["rule"] is not None for row in same),
                "first_ns": min(moments, default=None),
                "last_ns": max(moments, default=None),
                "first_due_ns": min(due, default=None),
                "last_due_ns": max(due, default=None),
            }
        )
    return found


def failures(
    rows: Sequence[Row], keys: Keys, bucket_ns: int | None, until_ns: int
) -> list[dict[str, Any]]:
    counts = Counter(
        (
            *keys(row).items(),
            ("bucket_ns", bucket(row["counted_end_ns"], bucket_ns)),
            ("outcome", row["outcome"]),
            ("reason", row["outcome"] if row["error"] is None else row["error"]),
        )
        for row in rows
        if row["is_failure"]
        and row["counted_end_ns"] is not None
        and row["counted_end_ns"] <= until_ns
    )
    return [dict(key) | {"failures": number} for key, number in counts.items()]


def groups(rows: Sequence[Row], keys: Keys) -> list[dict[str, Any]]:
    names = ("jobs", "attempts", "started", "succeeded", "failed")
    sums: dict[Any, Counter[str]] = defaultdict(Counter)
    for row in outcomes(rows, keys):
        for name in names:
            sums[tuple(keys(row).items())][name] += row[name]
    return [dict(key) | {name: each[name] for name in names} for key, each in sums.items()]


def steps(records: Iterable[ledger.Record]) -> list[tuple[Any, ...]]:
    """Job, name, number, whether it timed out, value, whether that is base64, and two moments."""
    found = set()
    for record in records:
        if isinstance(record, ledger.StepDone):
            job, _, rest = record.step.partition("/")
            name, _, number = rest.rpartition("#")
            if job and name and number.isdecimal():
                late = name.endswith("!timeout")
                facts = (job, name.removesuffix("!timeout"), int(number), late)
                value = (record.value, record.base64 == 1)
                found.add((*facts, *value, record.created_ns, record.logged.unix_ns))
    return list(found)


def events(records: Iterable[ledger.Record]) -> list[tuple[Any, ...]]:
    """Name, value, whether that is base64, and the moment."""
    happened = (record for record in records if isinstance(record, ledger.EventSet))
    return list({(r.event, r.value, r.base64 == 1, r.logged.unix_ns) for r in happened})


def growth(records: Sequence[Row], bucket_ns: int) -> list[dict[str, Any]]:
    of_key: dict[Any, list[Row]] = defaultdict(list)
    for record in records:
        of_key[record["dialect"], bucket(record["ns"], bucket_ns)].append(record)
    return [
        {
            "dialect": dialect,
            "bucket_ns": begin,
            "bytes": sum(record["bytes"] for record in same),
            "first_ns": min(record["ns"] for record in same),
            "last_ns": max(record["ns"] for record in same),
        }
        for (dialect, begin), same in of_key.items()
    ]


def awaits(reader: Row, item: Row) -> bool:
    """A reader of the same journal that has not finished the item."""
    is_done = item["item_id"] <= reader["head"] or item["item_id"] in (reader["done"] or ())
    return reader["_log"] == item["_log"] and not is_done


def item_outcomes(items: Sequence[Row], readers: Sequence[Row]) -> dict[tuple[str, str], str]:
    """By log and key."""
    return {
        (item["_log"], str(item["item_id"])): "waiting"
        if any(awaits(reader, item) for reader in readers)
        or all(reader["_log"] != item["_log"] for reader in readers)
        else "finished"
        for item in items
    }


def lag(items: Sequence[Row], readers: Sequence[Row]) -> list[dict[str, Any]]:
    found = []
    for reader in readers:
        behind = [item for item in items if awaits(reader, item)]
        names = ("_log", "queue", "reader", "head", "tail_id")
        found.append(
            {name: reader[name] for name in names}
            | {
                "items_behind": len(behind),
                "bytes_behind": sum(item["data_size"] for item in behind),
                "oldest_ns": min((item["put_ns"] for item in behind), default=None),
            }
        )
    return found


def reader_lag(readers: Sequence[Row]) -> list[dict[str, Any]]:
    most: dict[Any, list[Row]] = defaultdict(list)
    for row in readers:
        names = ("host", "log", "queue", "reader")
        hour = row["observed_at"].replace(minute=0, second=0, microsecond=0)
        most[*((name, row[name]) for name in names), ("hour", hour)].append(row)
    return [
        dict(key)
        | {name: max(row[name] for row in same) for name in ("items_behind", "bytes_behind")}
        for key, same in most.items()
    ]


def noted_attempts(attempts: Sequence[Row], notes: Sequence[Row]) -> list[dict[str, Any]]:
    noted = []
    for row in attempts:
        of_job = [n for n in notes if (n["place"], n["key"]) == (row["place"], row["key"])]
        leases = [
            (note["ns"], note["worker"])
            for note in of_job
            if note["attempt"] == row["attempt"]
            and row["started_ns"] is not None
            and note["ns"] >= row["started_ns"]
        ]
        was_cancelled = any(
            note["attempt"] is None and note["ns"] == row["ended_ns"] for note in of_job
        )
        outcome = "cancelled" if was_cancelled and row["outcome"] == "failed" else row["outcome"]
        kept = {name: value for name, value in row.items() if name != "place"}
        noted.append(
            kept
            | {"worker": min(leases)[1] if leases else None, "outcome": outcome}
            | {"error": None if was_cancelled else row["error"]}
        )
    return noted


# -- what an audit finds --------------------------------------------------------------------------

ODD_RECORDS = {
    "start-after-finish": ("duplicate-execution", "leased after it was finished"),
    "second-result": ("duplicate-execution", "finished once more; the first result stands"),
    "start-while-leased": ("overlapping-lease", "leased again while it was leased"),
    "start-over-limit": ("over-limit", "leased beyond max-attempts"),
    "orphan": ("orphan", "a record of a job that was never added"),
}


def finding(name: str, row: Row, detail: str, *moments: int | None) -> dict[str, Any]:
    found = {"finding": name, "_log": row["_log"], "key": row.get("key"), "detail": detail}
    times = [*moments, None, None, None]
    return {
        **found,
        "position": row.get("position"),
        **{f"ns_{n}": times[n - 1] for n in (1, 2, 3)},
    }


def job_findings(
    attempts: Sequence[Row], anomalies: Sequence[Row], as_of_ns: int, late_ns: int
) -> list[dict[str, Any]]:
    found = []
    for row in anomalies:
        if row["what"] in ODD_RECORDS:
            name, text = ODD_RECORDS[row["what"]]
            found.append(finding(name, row, f"{text}, @1", row["ns"]))
    for row in attempts_at([row for row in attempts if row["dialect"] == "workq"], as_of_ns):
        is_known = row["attempt"] == 1 and row["created_ns"] is not None
        if row["outcome"] == "replaced":
            text = "unfinished, and its id was used again: no end is recorded, @1"
            found.append(finding("vanished", row, text, row["ended_ns"]))
        elif not is_known or row["started_ns"] is not None:
            continue
        elif row["outcome"] == "expired":
            text = "its TTL ended before it was leased, @1"
            found.append(finding("expired-unrun", row, text, row["expires_ns"]))
        elif row["ready_ns"] is None:
            continue  # parked
        elif row["outcome"] == "waiting" and row["created_ns"] < row["ready_ns"] < late_ns:
            text = "scheduled, due, and never leased, @1"
            found.append(finding("missed-run", row, text, row["ready_ns"]))
    return found


def plan_findings(
    attempts: Sequence[Row], plans: Sequence[Row], planned: Sequence[Row], late_ns: int
) -> list[dict[str, Any]]:
    found = []
    times_planned = {
        (row["_log"], row["key"], row["ready_ns"]): row
        for row in plans
        if row["is_set"] and not row["is_rule"]
    }
    ran = defaultdict(list)
    for row in attempts:
        if row["outcome"] == "cut-off":
            text = f"cut off by a stop at @1, by rule {row['rule'] or ''}"
            found.append(finding("cut-off-run", row, text, row["ended_ns"]))
        else:
            ran[row["_log"], row["key"], row["ready_ns"]].append(row)
    for place, rows in ran.items():
        plan = times_planned.get(place)
        if len(rows) > max(1, plan["plans"] if plan else 1):
            starts = [row["started_ns"] or row["ended_ns"] for row in rows]
            text = f"ran {len(rows)} times for @1: first @2, last @3"
            about = {**rows[0], "position": plan and plan["position"]}
            moments = (place[2], min(starts), max(starts))
            found.append(finding("duplicate-execution", about, text, *moments))
    names = {
        "planned": ("missed-run", "still planned"),
        "triggered": ("never-executed", "triggered, no end recorded"),
    }
    for row in planned:
        if row["outcome"] in names and row["ready_ns"] < late_ns:
            name, text = names[row["outcome"]]
            found.append(finding(name, row, f"due at @1: {text}", row["ready_ns"]))
    for (_, _, is_rule), rows in _grouped(plans, "_log", "key", "is_rule"):
        if not any(row["is_set"] for row in rows):
            first = min(rows, key=lambda row: row["position"])
            what = "rule" if is_rule else "job"
            found.append(
                finding("orphan", first, f"removal of a {what} that this log does not know")
            )
    return found


def _grouped(rows: Sequence[Row], *names: str) -> list[tuple[tuple[Any, ...], list[Row]]]:
    groups = defaultdict(list)
    for row in rows:
        groups[tuple(row[name] for name in names)].append(row)
    return list(groups.items())


def item_findings(items: Sequence[Row], readers: Sequence[Row]) -> list[dict[str, Any]]:
    found = []
    last_of: dict[str, int] = {}
    segments = sorted(_grouped(items, "_log", "_segment", "_file", "queue"))
    for (log, _, file, queue), rows in segments:
        ids = {row["item_id"] for row in rows if row["ordinal"] == 0}
        first, last = min(row["item_id"] for row in rows), max(row["item_id"] for row in rows)
        between = max(0, first - last_of.get(log, first - 1) - 1)
        inside = max(0, last - first + 1 - len(ids))
        last_of[log] = last
        if between or inside:
            place = {"_log": log, "key": queue, "position": min(row["position"] for row in rows)}
            text = f"ids missing: {between} before {first}, {inside} after it in {file}"
            found.append(finding("vanished", place, text))
    for row in items:
        if row["ordinal"]:
            text = f"another item of queue {row['queue']} has this id; both are kept"
            found.append(finding("reused-id", {**row, "key": str(row["item_id"])}, text))
    for row in readers:
        head = row["head"]
        name = None
        if row["damaged"]:
            name = "checkpoint-damaged"
        elif head is not None and max(head, row["last_done"] or head) > row["tail_id"]:
            name = "reader-ahead"
        elif head is not None and head < row["first_id"] - 1:
            name = "reader-behind"
        if name:
            shown = "not known" if head is None else head
            about = f"reader '{row['reader']}' of queue {row['queue']}"
            text = f"{about}: head {shown}, items {row['first_id']} to {row['tail_id']}"
            found.append(finding(name, {**row, "key": row["reader"]}, text))
    return found


STATUSES = ("planned", "triggered", "executed", "failed")


def plans(records: Sequence[Row]) -> list[dict[str, Any]]:
    groups: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for row in records:
        if row["kind"] != "damage":
            is_rule, is_set = "rule" in row["kind"], row["kind"] in ("set", "rule_set")
            key = row["_log"], row["identifier"], is_rule, is_set, row["execution_ns"]
            groups[key].append(row)
    names = ("_log", "key", "is_rule", "is_set", "ready_ns")
    found = []
    for key, rows in groups.items():
        rows.sort(key=lambda row: row["_position"])
        written = [None if r["_file"].endswith(".compressed") else r["time_ns"] for r in rows]
        status = rows[-1]["status"]
        planned = [ns for r, ns in zip(rows, written, strict=True) if r["status"] == "planned"]
        found.append(
            dict(zip(names, key, strict=True))
            | {"latest": rows[-1]["_position"] * 4 + (STATUSES.index(status) if status else 0)}
            | {"last_length": rows[-1]["_length"], "position": rows[0]["_position"]}
            | {"plans": len(planned), "last_ns": written[-1]}
            | {"created_ns": min((ns for ns in planned if ns is not None), default=None)}
        )
    return found


def schedule_attempts(plans: Sequence[Row], runs: Sequence[Row]) -> list[dict[str, Any]]:
    """Of whole plans; the parts of one would have to be put together before."""
    known: dict[tuple[Any, ...], dict[str, Any]] = {}
    for (log, key), rows in _grouped(plans, "_log", "key"):
        rows.sort(key=lambda row: row["latest"])
        for row, following in zip(rows, [*rows[1:], None], strict=True):
            outcome = STATUSES[row["latest"] % 4]
            has_ended = outcome in ("executed", "failed")
            if following is not None and not has_ended:
                outcome = "removed" if following["ready_ns"] is None else "replanned"
            if row["ready_ns"] is not None:
                known[log, key, row["ready_ns"]] = {
                    "outcome": outcome,
                    "created_ns": row["created_ns"],
                    "position": row["position"],
                    "ended_ns": row["last_ns"] if has_ended else None,
                }
    ran: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for run in runs:
        ran[run["_log"], run["job"], run["execution_ns"]].append(run)
    found = []
    for place in {*known, *ran}:
        plan = known.get(place, {"outcome": None, "created_ns": None, "position": None})
        log, key, ready_ns = place
        same = {"_log": log, "key": key, "ready_ns": ready_ns, "dialect": "ztick"}
        nothing = dict.fromkeys(
            (
                *("queue", "task", "worker", "life", "retried", "exhausted", "expires_ns"),
                *("rule", "runner", "started_ns", "error"),
            )
        )
        of_runs = sorted(
            ran.get(place, ()),
            key=lambda r: (r["started_ns"], r["ended_ns"], r["outcome"], r["detail"] or ""),
        )
        for attempt, run in enumerate(of_runs, 1):
            rule = run["rule"] or None
            row = nothing | plan | same | {"attempt": attempt, "first": attempt == 1, "rule": rule}
            row |= {"runner": run["runner"] or None, "outcome": run["outcome"]}
            row |= {"started_ns": run["started_ns"] if rule else None, "ended_ns": run["ended_ns"]}
            found.append(row | {"error": (run["detail"] or "")[:200] or None})
        if not of_runs:
            found.append(nothing | plan | same | {"attempt": 1, "first": True})
    return found


def jobs(attempts: Sequence[Row]) -> list[dict[str, Any]]:
    found = []
    groups: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for row in attempts:
        life = 1 if row["life"] is None else row["life"]
        groups[row["host"], row["log"], row["dialect"], row["key"], life].append(row)
    for (*_, life), rows in groups.items():
        last = max(rows, key=_place_of_attempt)
        names = ("host", "log", "dialect", "key", "queue", "ready_ns", "ended_ns", "is_open")
        created = [row["created_ns"] for row in rows if row["created_ns"] is not None]
        started = [row["started_ns"] for row in rows if row["started_ns"] is not None]
        found.append(
            {name: last[name] for name in (*names, "_hash")}
            | {"life": life, "status": last["outcome"], "attempts": len(started)}
            | {"failures": sum(row["outcome"] in FAILURES for row in rows)}
            | {"created_ns": min(created, default=None), "started_ns": max(started, default=None)}
            | {"date": min(row["date"] for row in rows)}
        )
    return found


def firings(attempts: Sequence[Row]) -> list[dict[str, Any]]:
    occurrence = re.compile(r"(.+)@(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:Z|[+-]\d\d:\d\d))")
    found = []
    schedule = [row for row in attempts if row["dialect"] == "ztick"]
    for (_, _, key), rows in _grouped(schedule, "host", "log", "key"):
        if match := occurrence.fullmatch(key):
            for attempt, row in enumerate(sorted(rows, key=_place_of_attempt), 1):
                names = ("host", "log", "dialect", "key", "ready_ns", "started_ns", "ended_ns")
                kept = {name: row[name] for name in (*names, "run_s", "outcome", "_hash", "date")}
                kept |= {"is_open": row["is_open"], "lateness_s": row["wait_s"]}
                kept |= {"timetable": match[1], "occurrence": match[2], "attempt": attempt}
                found.append(kept)
    return found


def _place_of_attempt(row: Row) -> tuple[int, int, int]:
    position = -1 if row["position"] is None else row["position"]
    return position, row["ready_ns"] or 0, row["attempt"]


def plan_bytes(plans: Sequence[Row]) -> list[dict[str, Any]]:
    live: Counter[tuple[str, int]] = Counter()
    for _, rows in _grouped(plans, "_log", "key", "is_rule"):
        last = max(rows, key=lambda row: row["latest"])
        if last["is_set"]:
            live[last["_log"], last["latest"] // 4 >> 44] += last["last_length"]
    return _live_bytes(live)


def journal_bytes(records: Sequence[Row], readers: Sequence[Row]) -> list[dict[str, Any]]:
    live: Counter[tuple[str, int]] = Counter()
    heads = {}
    for row in sorted(records, key=lambda row: row["position"]):
        place = row["_log"], row["_segment"]
        mine = [reader for reader in readers if reader["_log"] == row["_log"]]
        item = row["item_id"]
        is_live = row["kind"] == ("PUT" if row["reader"] is None else "READ_DONE")
        if row["kind"] == "PUT" and mine:
            is_live = not all(item <= each["head"] or item in each["done"] for each in mine)
        live[place] += row["length"] if is_live else 0
        if row["reader"] is not None and row["kind"] == "READ_HEAD":
            heads[place] = row["length"]
    for place, length in heads.items():
        live[place] += length
    return _live_bytes(live)


def _live_bytes(live: Mapping[tuple[str, int], int]) -> list[dict[str, Any]]:
    return [
        {"_log": log, "_segment": segment, "live_bytes": count}
        for (log, segment), count in live.items()
    ]


def segments(files: Sequence[Row], live: Sequence[Row]) -> list[dict[str, Any]]:
    needed = {(row["_log"], row["_segment"]): row["live_bytes"] for row in live}
    found = []
    for file in files:
        bytes_ = needed.get((file["_log"], file["_segment"]), 0)
        row = {name: value for name, value in file.items() if name != "odd"}
        found.append({**row, "live_bytes": bytes_, "dead_bytes": file["record_bytes"] - bytes_})
    return found


def file_findings(odd_records: Sequence[Row], segments: Sequence[Row]) -> list[dict[str, Any]]:
    found = []
    for row in odd_records:
        name = "damage" if row["kind"] == "damage" else "unknown-record"
        what = row["damage"] or "unknown command"
        found.append(finding(name, row, f"{what}, {row['length']} bytes of {row['_file']}"))
    for row in segments:
        dead, whole = row["dead_bytes"], row["record_bytes"]
        if dead > 0:
            text = f"{dead} of {whole} bytes ({dead * 100 // whole} %) of {row['_file']}"
            found.append(finding("dead-bytes", {"_log": row["_log"]}, text))
    return found
