"""The lake: history that stays. Logs flow in once; tables and reports read the lake.

    logs, runs --new bytes--> bronze --fold touched keys--> silver --touched days--> gold
                              records as decoded            jobs, attempts, ...      by hour and day

    layout.py    the tables and their columns
    delta.py     files with statistics, and transactions of one table
    storage.py   snapshots: all tables at one moment, and how far the logs were read
    work.py      work spread over tasks of Spark
    bronze.py    new records of logs into bronze, exactly once
    small_files.py  runs, and where readers stand
    folding.py   records of keys -> rows of silver, as Arrow tables
    silver.py    which keys are touched, and which rows differ
    gold.py      the counts of touched days, by the views of spark/views
    refresh.py   silver and gold of what is fresh in bronze
    ingest.py    all of these in order
    frames.py    tables as DataFrames, with the live tail of logs if asked for
    views.py     tables as rows of history
    upkeep.py    forget a key, drop old days, join small files

docs/lake.md lists every table and column.
"""
