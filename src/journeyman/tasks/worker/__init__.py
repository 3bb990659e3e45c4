"""The worker of an app: ``journeyman worker MODULE:APP``, or ``Worker`` in a program of your own.

worker.py      leases, runs, reports
link.py        a pipelined connection
reports.py     what has to reach the server
threads.py     where sync functions run
program.py     finding the app, signals, several processes, reloading
"""

from journeyman.tasks.worker.worker import QueueShare, Worker

__all__ = ["QueueShare", "Worker"]
