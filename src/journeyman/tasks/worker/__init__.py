"""The worker of an app: ``journeyman worker MODULE:APP``, or ``Worker`` in a program of your own.

worker.py      leases, runs, reports
batches.py     leases of tasks that take many jobs at once
link.py        its connections, and the reports on them
threads.py     where sync functions run
program.py     finding the app, signals, several processes, reloading, metrics
"""

from journeyman.tasks.worker.worker import QueueShare, Worker

__all__ = ["QueueShare", "Worker"]
