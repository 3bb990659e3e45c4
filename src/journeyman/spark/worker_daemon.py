"""Spark's daemon of Python workers, with two of its habits changed.

    Java --starts--> daemon --forks--> workers, each of which does one task after another

Spark names its daemon by a setting, ``spark.python.daemon.module``; a session on this machine names
this one. It is pyspark's own but for what a worker does behind a task:

- Spark lets it look for garbage, and the next task waits for that. The modules of a worker, with
  numba's and Arrow's, are a hundred thousand objects that are never garbage, and going through them
  takes 50 ms, more than all else that a task begins and ends with. They are counted out.
- Java sends a task in small pieces, and before it sends the next one it waits until the first has
  been acknowledged; the system takes its time with that, 40 ms. It is told not to, where it can be.
"""

from __future__ import annotations

import gc
import socket
import sys

from pyspark import daemon

_SETTLING = 8  # tasks in which a worker may still import something

_pyspark_task = daemon.worker
_tasks_done = 0


def do_task(sock: socket.socket, authenticated: bool) -> int:
    """What a worker does again and again; not 0: it ends."""
    global _tasks_done
    _acknowledge_at_once(sock)
    code = _pyspark_task(sock, authenticated)
    _tasks_done += 1
    if _tasks_done <= _SETTLING:
        gc.collect()
        gc.freeze()
    return code


def _acknowledge_at_once(sock: socket.socket) -> None:
    """What comes next; the system forgets it as soon as something is sent."""
    if sys.platform == "linux" and sock.family in (socket.AF_INET, socket.AF_INET6):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)


if __name__ == "__main__":
    daemon.worker = do_task
    daemon.manager()
