"""DataFrames back into logs, and onto a running server.

    log_sink    ``frame.write.format("ztick")``, ``journeyman.spark.write``: the data source of logs
    parts       what its tasks do: rows -> part files
    commit      what its driver does: part files -> a log; dialects: of each kind
    server      ``frame.write.format("journeyman")``, ``journeyman.spark.send``: jobs onto a server
    sending     what its tasks do

What a log sink promises: rows in order, all files or none, a log that the server and the originals
load, and nothing twice whatever tasks are retried. docs/spark.md says how, and what it does not.

Nothing is imported here: Spark looks into this package in every session.
"""
