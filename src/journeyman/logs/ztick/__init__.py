"""The schedule's log on disk, its compaction and the history of its runs."""
