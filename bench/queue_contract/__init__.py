"""Journeyman in the benchmark github.com/hardbyte/postgresql-job-queue-benchmarking.

adapter.py    the process that the contract of that benchmark describes
adapter.json  what that benchmark reads before it starts the adapter
published.py  our figures beside those that it has published
__main__.py   its cells of chaos and throughput, run here, with Debian's PostgreSQL
"""
