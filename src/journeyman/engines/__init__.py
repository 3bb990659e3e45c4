"""Decisions: state + command + time -> records, reply, effects. No files, sockets or clock.

An engine holds the state that a log folds to, in the shape that decisions need: what is due next,
which rule a job runs by, what runs at the moment. It applies what it decides at once, and it can
take a whole batch back when the log could not be written. docs/engines.md has the tables.

    ztick.py           the front door: Schedule.decide
    ztick/messages.py  what goes in besides the client's commands, and what comes out
    ztick/jobs.py      all jobs: status, counts, undo
    ztick/job.py       one job, packed into bytes
    sharded_dict.py   where they lie, and listings of them as of one moment
    ztick/due.py       which planned job is due next
    ztick/runs.py      which triggered jobs wait and which run
    ztick/rules.py     rules, and the longest pattern that a job begins with
    ztick/loading.py   a log -> a Schedule

    workq.py           the front door: WorkQueue.decide
    workq/messages.py  what goes in besides the client's commands, and what comes out
    workq/state.py     what all decisions share
    workq/adding.py, workq/leasing.py, workq/finishing.py, workq/ending.py, workq/due.py,
    workq/views.py     the decisions, by what happens to a job
    workq/jobs.py      all jobs, and all orders that they stand in
    workq_job.py       one job, packed into bytes
    workq/queues.py    the queues; workq/waiting.py who waits; sorted_set.py a sorted list
    workq/loading.py   a log -> a WorkQueue; workq/bulk.py the same for millions of rows

    kestrel.py            the front door: FanOut.decide
    kestrel/messages.py   what goes in besides the client's commands, and what comes out
    kestrel/state.py      all queues, open reads and waits, and how a batch is taken back
    kestrel/delivery.py   items put, given out, confirmed, given back, too old
    kestrel/flush_and_delete.py      whole queues: flush, delete, expire
    kestrel/queue.py      one queue; kestrel/reader.py one of its readers
    kestrel/intervals.py  sets of ids
    kestrel/waits.py      who waits; kestrel/settings.py limits
"""
