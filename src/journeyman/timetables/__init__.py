"""Timetables: when something recurs. Pure: text -> moments, no clock, no state, no jobs.

    text, fields ──timetable.py──> Timetable ──occurrences.py──> Occurrences.after(moment)
                                       │                              │
                   cron.py, zones.py: expressions and zones      1795053600, 1795140000, ...

    timetable.py     what a person writes, checked; every error names its field
    cron.py          cron expressions over the clock on the wall, which knows no zone
    zones.py         the clock on the wall <-> moments, on both nights of the year when it jumps
    occurrences.py   the moments of a timetable: next, last, a range, warnings

Not here: that an occurrence becomes a job, is caught up, skipped or tried again. The schedule's
engine does that (engines/ztick/timetables.py). A moment is whole seconds since 1970, in UTC.
"""

from journeyman.timetables.occurrences import Firing, Occurrences, occurrences_of
from journeyman.timetables.timetable import Timetable

__all__ = ["Firing", "Occurrences", "Timetable", "occurrences_of"]
