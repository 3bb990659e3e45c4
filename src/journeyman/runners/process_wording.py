"""What a program is told, and what is said about it: pure text, no process.

environment   the server's, and the job: id, moment in nanoseconds, moment in ISO 8601
start_reason  why it could not be started
exit_reason   how it ended, unless it ended well
"""

from __future__ import annotations

import errno
import os
import shutil
import signal
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

from journeyman.runners.contract import shown

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NS_PER_S = 1_000_000_000

# Shells report so what they could not run; other programs keep to it, too.
_SHELL_STATUS = {126: " (found, but it cannot be executed)", 127: " (command not found)"}


def environment(
    inherited: Mapping[bytes, bytes], job_id: str, execution_ns: int
) -> dict[bytes, bytes]:
    """Bytes, so that a server in a locale without UTF-8 passes ids on unharmed."""
    return {
        **inherited,
        b"JOURNEYMAN_JOB_ID": job_id.encode(),
        b"JOURNEYMAN_EXECUTION_NS": b"%d" % execution_ns,
        b"JOURNEYMAN_EXECUTION": iso_moment(execution_ns).encode(),
    }


def iso_moment(moment_ns: int) -> str:
    """2026-03-30T14:00:00Z, with nine digits of a second's fraction if there is one."""
    whole_s, fraction_ns = divmod(moment_ns, _NS_PER_S)
    # Not fromtimestamp(): on some systems it refuses moments before 1970.
    whole = (_EPOCH + timedelta(seconds=whole_s)).replace(tzinfo=None).isoformat()
    return f"{whole}.{fraction_ns:09}Z" if fraction_ns else f"{whole}Z"


def start_reason(program: str, error: OSError) -> str:
    """Why the program could not be started, from what the operating system said."""
    name = shown(program)
    if not program:
        return "the rule names no program"
    if error.errno == errno.ENOENT:
        if shutil.which(program):
            return f"{name} cannot be started: its interpreter does not exist"
        where = "" if "/" in program else " in PATH"
        return f"{name} cannot be started: there is no such program{where}"
    if error.errno in (errno.EACCES, errno.EISDIR):
        return f"{name} cannot be started: it is not executable"
    if error.errno == errno.ENOEXEC:
        return f"{name} cannot be started: it is neither a program nor a script with a #! line"
    if error.errno == errno.E2BIG:
        return f"{name} cannot be started: its arguments are too long"
    cause = os.strerror(error.errno).lower() if error.errno else str(error)
    return f"{name} cannot be started: {cause}"


def exit_reason(returncode: int) -> str:
    """How the program ended, in words; empty if it ended well. Negative codes are signals."""
    if returncode == 0:
        return ""
    if returncode < 0:
        return f"was killed by {_signal_name(-returncode)}"
    return f"exited with status {returncode}{_SHELL_STATUS.get(returncode, '')}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"  # a real-time signal
