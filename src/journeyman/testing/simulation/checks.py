"""What must hold for a whole history; AssertionError with the first things that do not.

registers     each scheduled job, and each job of the work queue, is linearizable
in order      what was put first comes first: jobs of one queue, items of one reader
once          without a crash in between, an item comes once to a reader, a run happens once
at least once what was stored has come to every reader in the end, every job has ended
not invented  what came was put; what runs was set
occurrences   each occurrence of a timetable has one job, and none is missing
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from journeyman.testing.simulation.history import UNKNOWN, History, Operation
from journeyman.testing.simulation.linearizability import Model, check
from journeyman.testing.simulation.models import (
    NOT_FOUND,
    OK,
    REFUSED,
    scheduled_job,
    work_job,
)

SHOWN = 10


def tell(wrong: Iterable[str]) -> None:
    """AssertionError, if anything is wrong."""
    found = list(wrong)
    more = [f"and {len(found) - SHOWN} more"] if len(found) > SHOWN else []
    if found:
        raise AssertionError("\n".join([*found[:SHOWN], *more]))


_MODELS: Mapping[str, Model] = {"schedule": scheduled_job, "work": work_job}
REGISTERS = frozenset(_MODELS)


def check_registers(history: History, service: str) -> int:
    """How many operations were checked."""
    count = 0
    for operations in history.of_keys(f"{service}/").values():
        check(_MODELS[service], None, operations)
        count += len(operations)
    return count


def check_not_invented(history: History) -> None:
    """Every scheduled job that was shown was asked for like that, at some time."""
    for key, operations in history.of_keys("schedule/").items():
        asked = {each.ask[1] for each in operations if each.ask[0] == "set"}
        shown = {each.answer for each in operations if each.ask[0] == "get"}
        tell(
            f"{key} was shown as due at {each}, and never set so"
            for each in shown - asked - {NOT_FOUND, REFUSED, UNKNOWN}
        )


def check_order(
    puts: Mapping[str, Operation],
    seen: Mapping[str, Sequence[Operation]],
    lost: Sequence[Operation] = (),
) -> None:
    """``seen``: with which operations each came. It came at first with one of them, maybe not with
    the one that was answered first: a client may be slow to read.

    Wrong is: one was put before another (the first put had ended when the second began), and came
    after it (likewise). ``lost``: operations whose answer may have taken something away for a
    while; what they may have taken may come late.
    """
    begins = sorted((min(each.invoked for each in its), name) for name, its in seen.items())
    ends = sorted((min(each.returned for each in its), name) for name, its in seen.items())
    wrong, ended, latest, which = [], 0, 0, ""
    for begin, name in begins:
        while ends[ended][0] < begin:
            before = ends[ended][1]
            ended += 1
            if puts[before].invoked > latest:
                latest, which = puts[before].invoked, before
        put = puts[name]
        if put.returned < latest and not any(
            each.invoked < begin and each.returned > put.invoked for each in lost
        ):
            wrong.append(f"{name} was put before {which}, and came after it: {put}, {seen[name]}")
    tell(wrong)


def check_occurrences(runs: Sequence[tuple[int, str]], every_s: Mapping[str, int]) -> int:
    """``runs``: in which life of the server which job ran. How many occurrences there were."""
    by_job: dict[str, list[int]] = {}
    for life, job in runs:
        by_job.setdefault(job, []).append(life)
    wrong = [
        f"{job} ran twice in a life: {lives}" for job, lives in by_job.items() if _twice(lives)
    ]
    seconds: dict[str, list[int]] = {name: [] for name in every_s}
    for job in by_job:
        name, at, moment = job.partition("@")
        if at and name in seconds:
            seconds[name].append(int(datetime.fromisoformat(moment).timestamp()))
    for name, every in every_s.items():
        found = sorted(seconds[name])
        if len(set(found)) < len(found):
            wrong.append(f"{name} has two jobs for one occurrence")
        if found:
            missing = sorted(set(range(found[0], found[-1] + 1, every)) - set(found))
            wrong += [f"{name} did not run at {second}" for second in missing]
    tell(wrong)
    return sum(map(len, seconds.values()))


def _twice(lives: Sequence[int]) -> bool:
    return len(set(lives)) < len(lives)


def check_deliveries(
    puts: Mapping[str, Operation],
    deliveries: Sequence[tuple[str, Operation]],
    lost: Sequence[Operation],
) -> None:
    """Of one reader that has read to the end: what came, and with which operation."""
    seen: dict[str, list[Operation]] = {}
    for name, operation in deliveries:
        seen.setdefault(name, []).append(operation)
    wrong = [f"{name} was never put" for name in seen if name not in puts]
    wrong += [
        f"{put} was stored and never came"
        for name, put in puts.items()
        if put.answer == OK and name not in seen
    ]
    tell(wrong)
    check_order(puts, seen, lost)
