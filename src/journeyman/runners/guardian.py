"""Ends the programs of a server that died without ending them itself.

    server --- a pipe: "+4711\\n" started, "-4711\\n" ended ---> guardian
      |                                                             |
      kill -9: the pipe closes  - - - - - - - - - - - - - - - ->  SIGKILL to every group that
                                                                    has started and not ended
A server that is stopped ends its own programs. A server that is killed cannot; its programs would
live on beside the second run that follows its restart. So a second, tiny process holds the other
end of a pipe: the operating system closes it whenever and however the server ends.

It is given process groups, so the children of a program go with it; programs that made a
session of their own are out of reach. A program is reported as soon as its id is known; the moment
before that is not covered. If the guardian cannot be started, or was killed and cannot be
started again, programs run unguarded: a job is not failed for that.

This file is both sides. The guardian runs it alone, without the package, so it imports nothing
but the standard library.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterable

CLOSE_LIMIT_S = 5.0


class Guardian:
    """The server's side. The process starts when it is first needed."""

    def __init__(self) -> None:
        self._groups: set[int] = set()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def process_id(self) -> int | None:
        return self._process.pid if self._process else None

    def start(self) -> None:
        """Be there before there is anything to guard. Does nothing if it is."""
        if self._process is None:
            self._start()

    def guard(self, group: int) -> None:
        """Let the group not outlive this process from now on."""
        self._groups.add(group)
        if not self._tell(b"+%d\n" % group):
            self._start()

    def release(self, group: int) -> None:
        """The group has ended, or may live on."""
        self._groups.discard(group)
        self._tell(b"-%d\n" % group)

    def close(self) -> None:
        """Let the process go. It ends what is still guarded. Blocks for as long as that takes."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        with contextlib.suppress(OSError):
            process.stdin.close()
        try:
            process.wait(CLOSE_LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _start(self) -> None:
        self.close()
        try:
            self._process = subprocess.Popen(
                # Isolated and without site packages: it starts in a few milliseconds.
                [sys.executable, "-I", "-S", __file__],
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                start_new_session=True,  # Ctrl-C in a terminal is for the server alone
            )
        except OSError:
            return
        self._tell(b"".join(b"+%d\n" % group for group in self._groups))

    def _tell(self, message: bytes) -> bool:
        if self._process is None:
            return False
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(message)
        except OSError:
            return False
        return True


def watch(lines: Iterable[bytes]) -> set[int]:
    """Follow what the server reports; the groups that are left when it stops."""
    groups: set[int] = set()
    for line in lines:
        sign, number = line[:1], line[1:].strip()
        if not number.isdigit():
            continue  # a line the server did not live to finish
        if sign == b"+":
            groups.add(int(number))
        else:
            groups.discard(int(number))
    return groups


def main() -> None:
    # A stop signal reaches the whole group or service: the guardian goes last.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    for group in watch(sys.stdin.buffer):
        with contextlib.suppress(OSError):
            os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    main()
