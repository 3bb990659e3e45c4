"""The work queue as a service: connections, the writer, where jobs are kept."""
