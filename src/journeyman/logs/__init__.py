"""Logs on disk: directories of segments that grow at the end and survive a crash.

    segments        names and catalogs of the three dialects, and when the next segment begins
    tail            the active segment: the only place that writes, syncs, rotates and cuts back
    appender        many appends, one write and one sync (group commit); sync policies
    recovery        after a crash or on a bad disk: read, report, repair, quarantine
    damage          reading on after damage, and the words of the report
    sealing         writing seals; sealed_reading reads them; taking_back restores from quarantine
    publication     changing one file, or many at once: all or none
    replaced_files  notes for streams when a file is replaced

and for each dialect a log that is opened, appended to and made smaller:

    ztick/log.py    with compaction.py                     one file, and a compacted one
    workq/log.py    with cleaning.py                       numbered segments
    kestrel/log.py  with checkpoints.py and retention.py   segments and readers

Everything here takes its Disk and Clock as arguments, and the shared modules also their Codec.
docs/logs.md has the files, the locks, and what a crash leaves at every step.
"""
