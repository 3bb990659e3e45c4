"""Logs made smaller, offline, on Spark: the counterparts of what the server does to its own.

    compact   ztick    the last record of every job and rule, all in the one file
              kestrel  items that every reader has finished go
    clean     workq    deleted and expired jobs go, the others are told in the fewest records
    archive   all      every record to Parquet; then segments that nothing needs may go

All of them do the same five things, for each log by itself:

    hold      the locks of the log, from the first look to the last: nothing is appended meanwhile
    fold      the state, by journeyman.spark.tables; damage is a reason to stop
    stage     the new files, in a hidden directory beside the old ones
    verify    fold what was staged; any difference from the state before: nothing is published
    publish   by renames that leave, at every step, a log of this state

Several logs are worked on at the same time, each for itself: one that is in use or damaged does not
keep the others waiting. Local file systems only: a lock on an object store holds nobody off.
"""

from __future__ import annotations

from journeyman.spark.maintenance.holding import MaintenanceResult
from journeyman.spark.maintenance.running import clean, compact, compaction_plans

__all__ = ["MaintenanceResult", "clean", "compact", "compaction_plans"]
