"""Decisions: state + command + time -> records, reply, effects. No files, sockets or clock.

An engine holds the state that a log folds to, in the shape that decisions need: what is due next,
which rule a job runs by, what runs at the moment. It applies what it decides at once, and it can
take a whole batch back when the log could not be written. docs/engines.md has the tables.

All three engines have one shape. ``decide`` looks the command up in a table of functions; each
takes the state, adds records and effects to it, and returns a reply, which is a value: a protocol
makes bytes of it. A dialect's folder has

    engine.py     the way in: the table, ``decide``, ``next_due_ns``, batches; what is decided in
                  one step for speed
    state.py      what all decisions share (ztick: in engine.py)
    messages.py   what goes in besides the commands of clients, and what comes out
    loading.py    a log -> an engine (kestrel: ``KestrelEngine.load``, one queue at a time)

    ztick/        engine.py has the decisions, but for those about timetables; job_table.py all jobs
                  and which is due next; rules.py which rule a job runs by
    workq/        adding.py, lifecycle.py, views.py the decisions; packed.py a job and its
                  transitions; queues.py queues and who waits
    kestrel/      engine.py and bulk.py the decisions; queue.py a queue, its readers and settings

    sorted_set.py, sharded_dict.py   what they are made of
"""
