"""The fan-out queues decide: items, readers and open reads."""
