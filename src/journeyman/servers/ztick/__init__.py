"""The schedule as a service: connections, the writer, runs, compaction while serving."""
