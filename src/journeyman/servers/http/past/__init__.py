"""The logs as they were at a moment, folded in a process of its own (child.py)."""
