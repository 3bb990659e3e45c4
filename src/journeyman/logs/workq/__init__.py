"""The work queue's log on disk, and its cleaning."""
