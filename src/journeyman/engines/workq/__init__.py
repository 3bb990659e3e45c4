"""The work queue decides: jobs, queues and the clients that wait."""
