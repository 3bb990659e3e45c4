"""Loops that kill, for as long as wanted; the tests run the same loops for seconds.

python -m tests.kills.server      a server with one service or all, under load
python -m tests.kills.tasks       workers and server while jobs of tasks run
python -m tests.kills.takeovers   servers on one PostgreSQL, and the database itself
python -m tests.kills.lake        driver and Java during ingests
python -m tests.kills.cluster     executors during replays, and logs that are hard for a cluster
python -m tests.kills.backups     a server and the process that ships its backups
"""
