"""The history of every job, attempt by attempt, and its summaries."""
