"""The store of job records follows the work queue's log, in a process of its own.

follower.py    reads the log, and keeps the store its index
child.py       the functions of that process
process.py     the server's end: starts it, asks it, starts it again
"""
