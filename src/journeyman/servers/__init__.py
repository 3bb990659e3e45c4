"""Engines as servers: sockets, threads and time around engines that know none of them.

    clients --session--> writer --decide--> engine      one task, in order
                           |   --records--> log         one write and one sync a batch
                           |   --replies--> sessions    only when durable
                           +---effects----> runs, or clients that waited: only when durable
    ticker --"due now"--> writer            runs --"finished"--> writer

Each door has its own session, writer and log; what they have in common is in the first list.

    process.py       the process: event loop, signals, exit code
    data_directory.py  made at a start if something is kept in it
    open_files.py    how many connections the limit on open files leaves room for
    group_commit.py  batches: decided, written, told, or taken back
    queue_writer.py  the same for queues: weighed commands, who left, errands between batches
    connection.py    one connection: bounds and flow             closing.py     its end at a stop
    listener.py    a port                    sockets.py          options of a socket
    ticker.py      when to look at what the time has brought
    recovered.py   what was found when a log was opened          server_log.py  lines on stderr
    http.py        the HTTP port             metric_families.py  figures, their shape and text
    telemetry.py   spans and figures for a collector             telemetry/otlp.py  in its format

The schedule (ztick protocol):

    schedule.py    builds everything below from the settings; start and stop
    loading.py     a log on disk -> a Schedule, and the log open for writing
    writer.py      the single writer         answers.py          replies -> bytes
    session.py     one connection            auth.py             delays for guessers
    tls.py         TLS                       runs.py             starts runs, tells how they went
    compaction.py  when the log is compacted, and what came of it
    stat.py        what STAT tells           http/api.py         jobs and rules over HTTP
    metrics.py     its figures

The work queue (workq protocol):

    workqueue.py      builds everything below from the settings; start and stop
    workq/loading.py  a command log on disk -> a WorkQueue       workq/bulk.py  the fast way
    workq/journal.py  a batch -> the log, as durable as the policy says
    workq/writer.py   the single writer      workq/session.py    one connection
    workq/upkeep.py   interval sync, cleaning
    workq/calls.py    commands from inside   workq/http.py       queues and jobs over HTTP
    workq/metrics.py  its figures

The fan-out queues (kestrel protocol):

    fanout.py          builds everything below; start and stop
    kestrel/plan.py     settings -> what is to be built, with the limits of every queue
    kestrel/journals.py the journals of all queues: write, read back, checkpoint
    kestrel/writer.py   the single writer     kestrel/session.py   one connection
    kestrel/stats.py    figures, version, status                  kestrel/metrics.py  its figures
    kestrel/calls.py    puts from inside      kestrel/http.py      queues over HTTP
"""
