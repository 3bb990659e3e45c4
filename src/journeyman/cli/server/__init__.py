"""The commands that talk to a running server, over its three ports.

    status, top, ping      status.py      is it there, and what does it do
    add, result, jobs      jobs.py        jobs of the work queue
    queues, fan-out        queues.py
    rules                  rules.py       what the schedule runs
    timetable              timetables.py  what it runs again and again

Common to all: ``--server URL`` (or $JOURNEYMAN_URL) and ``--json``, see connection.py.
"""
