"""The lake: what ran, kept for good. Logs flow in once; tables and reports read the lake.

    logs, runs --new bytes--> bronze --fold touched keys--> silver --touched days--> gold
                              records as decoded            jobs, attempts, ...      by hour and day

    layout.py    the tables: their columns, where their files are
    storage.py   files of a table, changed all at once or not at all; Parquet or Delta
    bronze.py    new records of logs into bronze, exactly once
    small_files.py  runs, and where readers stand
    silver.py    bronze -> one row per attempt, job, run and item
    gold.py      silver -> throughput, latency, failures, lateness, depth, lag
    upkeep.py    forget a key, drop old days, join small files

docs/lake.md lists every table and column.
"""
