"""Decisions: state + command + time -> records, reply, effects. No files, sockets or clock.

An engine holds the state that a log folds to, in the shape that decisions need: what is due next,
which rule a job runs by, what runs at the moment. It applies what it decides at once, and it can
take a whole batch back when the log could not be written. docs/engines.md has the tables.

    ztick.py           the front door: Schedule.decide
    ztick_outcomes.py  what goes in besides the client's commands, and what comes out
    ztick_jobs.py      all jobs: status, counts, undo
    ztick_job.py       one job, packed into bytes
    ztick_drawers.py   where they lie, and listings of them as of one moment
    ztick_due.py       which planned job is due next
    ztick_runs.py      which triggered jobs wait and which run
    ztick_rules.py     rules, and the longest pattern that a job begins with
    ztick_loading.py   a log -> a Schedule

    workq.py           the front door: WorkQueue.decide
    workq_outcomes.py  what goes in besides the client's commands, and what comes out
    workq_state.py     what all decisions share
    workq_adding.py, workq_leasing.py, workq_finishing.py, workq_ending.py, workq_due.py,
    workq_views.py     the decisions, by what happens to a job
    workq_jobs.py      all jobs, and all orders that they stand in
    workq_job.py       one job, packed into bytes
    workq_queues.py    the queues; workq_waiting.py who waits; workq_order.py a sorted list
    workq_loading.py   a log -> a WorkQueue; workq_bulk.py the same for millions of rows

    kestrel.py            the front door: FanOut.decide
    kestrel_outcomes.py   what goes in besides the client's commands, and what comes out
    kestrel_state.py      all queues, open reads and waits, and how a batch is taken back
    kestrel_delivery.py   items put, given out, confirmed, given back, too old
    kestrel_whole.py      whole queues: flush, delete, expire
    kestrel_queue.py      one queue; kestrel_reader.py one of its readers
    kestrel_intervals.py  sets of ids
    kestrel_waits.py      who waits; kestrel_settings.py limits
"""
