"""Logs of the fan-out queues on disk: segments, checkpoints, index, retention."""
