"""Engines as servers: sockets, threads and time around engines that know none of them.

    clients --session--> writer --decide--> engine      one task, in order
                           |   --records--> log         one write and one sync a batch
                           |   --replies--> sessions    only when durable
                           +---effects----> runs, or clients that waited: only when durable
    ticker --"due now"--> writer            runs --"finished"--> writer

Each service has these in a folder of its own; what they have in common is in core/.

    core/connection.py    one connection: bytes in, answers out, bounds, AUTH
    core/group_commit.py  batches: decided, written, answered, or undone
    core/service.py       a service: start, trouble, failure, stop; when something is due next
    core/shared.py        what all share: the budget of unsent bytes, turns for long work, timers
    core/listener.py      a port, and TLS on it
    core/access.py        tokens, and delays for guessers
    core/metrics.py       figures with names, and those about the disk
    core/ledger.py        what the logs cannot hold
    core/server_log.py    lines on stderr; what systemd hears
    core/bulk_loading.py  a log for a loader; a large one is read in a helper process
    core/helper_process.py  processes for long work, and what is sent to them and back

    ztick/  workq/  kestrel/
      service.py          builds the rest from the settings
      session.py          one connection: parses, asks the writer, renders its replies
      writer.py           the single writer
      metrics.py          its figures
      persistence.py      how the log is loaded and looked after
    ztick/telemetry.py    spans and figures for a collector; over OTLP: otlp.py

    http/                 the HTTP port: all services over HTTP, and the console
    assembly.py           the services and the HTTP port, put together
    process.py            what they need; event loop, signals, exit code
    preflight.py          what is checked and prepared before anything is opened
"""
