"""The work queue's log on disk, its cleaning and its paused queues."""
