"""Logs as Spark data sources: planning, splits, tasks, rows."""
