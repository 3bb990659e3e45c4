"""The commands that talk to a running server, over its three ports.

    status, top, ping, tail    status.py     is it there, and what does it do
    add, result, jobs          jobs.py       jobs of the work queue
    queues, fan-out            queues.py
    rules, timetable           schedule.py   what the schedule runs, and when

Common to all: ``--server URL`` (or $JOURNEYMAN_URL) and ``--json``, see connection.py.
"""
