"""Logs on disk: directories of segments that grow at the end and survive a crash.

    segments    names and catalogs of the three dialects, and when the next segment begins
    sync        how durable an append is when it is acknowledged
    tail        the active segment: the one place that writes, syncs, rotates and cuts back
    appender    many appends, one write and one sync (group commit)
    recovery    what a crash or a bad disk left behind: read, report, repair
    damage      the words of that report, and reading on behind damage
    quarantine  where damaged bytes go; nothing is destroyed

Everything here takes its Disk, Clock and Codec as arguments.
"""
