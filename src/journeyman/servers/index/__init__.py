"""The store of job records follows the work queue's log, in a process of its own.

follower.py    reads the log, and keeps the store its index
process.py     both ends of the pipe between the server and that process
"""
