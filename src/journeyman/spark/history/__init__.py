"""What happened to every job, attempt by attempt, and its summaries."""
