"""The state at an earlier moment: engines loaded up to it, in a process of their own."""
