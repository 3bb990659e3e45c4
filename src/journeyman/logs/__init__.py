"""Logs on disk: directories of segments that grow at the end and survive a crash.

    segments    names of files in the three dialects, and when the next segment begins
    catalog     which files are which log, in which order; detection guesses the dialect of a path
    appender    a batch of records in one write and one sync; rotates and cuts back
    recovery    what a crash or a bad disk has left: read, report, repair, set aside
    damage      the words of that report, and reading on after damage
    sealing     sealed files: written whole or closed, and how any of them is read
    publication putting new files in the place of old ones, one or many

and on these, for each dialect a log that is opened, appended to and made smaller:

    ztick/log.py     one file, and a compacted one      ztick/run_history.py   the history of runs
    workq/log.py     numbered segments                  workq/cleaning.py      makes them fewer
    kestrel/log.py   a queue                            kestrel/segments.py, kestrel/checkpoints.py
    ledger.py        numbered segments

Everything here takes its Disk and Clock as arguments, and the modules above also their Codec.
docs/logs.md has the files, the locks, and what a crash leaves at every step.
"""
