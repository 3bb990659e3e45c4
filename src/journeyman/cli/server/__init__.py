"""The commands that talk to a running server, over its three ports.

    status, top, ping      status.py      is it there, and what does it do
    add, result, jobs      jobs.py        jobs of the work queue
    queues, fan-out        queues.py
    rules, timetable       schedule.py    what the schedule runs, and what again and again
    tail                   over_http.py   what becomes durable, live

Common to all: ``--server URL`` (or $JOURNEYMAN_URL) and ``--json``, see connection.py.
"""
