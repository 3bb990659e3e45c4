"""The schedule as a server: sockets, threads and time around an engine that knows none of them.

    clients --session--> writer --decide--> engine      one task, in order
                           |   --records--> log         one write and one sync a batch, in a thread
                           |   --replies--> sessions    only when durable
                           +---effects----> runs        only when durable
    ticker --"due now"--> writer            runs --"finished"--> writer

Where to find what:

    process.py     the process: event loop, signals, exit code
    schedule.py    builds everything below from the settings; start and stop
    loading.py     a log on disk -> a Schedule, and the log open for writing
    writer.py      the single writer with group commit
    answers.py     what the engine replied -> bytes of the ztick protocol
    session.py     one connection            listener.py         the port
    tls.py         TLS                       sockets.py          options of a socket
    auth.py        delays for guessers       ticker.py           when to look for due jobs
    runs.py        starts runs, hands their outcome to the writer
    compaction.py  when the log is compacted, and what came of it
    stat.py        what STAT tells besides what the engine knows
    http.py        the HTTP port             http_api.py         jobs and rules over HTTP
    metrics.py     the server's figures      metric_families.py  their shape and text
    telemetry.py   spans and figures for a collector             telemetry_otlp.py  in its format
    server_log.py  lines on stderr
"""
