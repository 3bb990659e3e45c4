"""Logs on disk: directories of segments that grow at the end and survive a crash.

    segments    names and catalogs of the three dialects, and when the next segment begins
    appender    a batch of records in one write and one sync; rotates and cuts back
    recovery    what a crash or a bad disk left behind: read, report, repair
    damage      the words of that report, and reading on behind damage
    quarantine  where damaged bytes go; nothing is destroyed
    replacement putting a new file in the place of an old one

and on these, for each dialect a log that is opened, appended to and made smaller:

    ztick/log.py         ztick_compaction                          one file, and a compacted one
    workq/log.py         workq_cleaning, workq/droppable.py              numbered segments
    kestrel/log.py   kestrel/checkpoints.py, kestrel/retention.py    segments and readers

Everything here takes its Disk and Clock as arguments, and the modules above also their Codec.
docs/logs.md has the files, the locks, and what a crash leaves at every step.
"""
