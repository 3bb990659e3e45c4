"""Journals of fan-out queues on disk: segments, checkpoints, index, retention."""
