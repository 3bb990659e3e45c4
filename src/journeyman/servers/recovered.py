"""What was found when a log was opened, as lines of the server's log: one a file, one a damage."""

from __future__ import annotations

from journeyman.logs.recovery import RecoveryReport
from journeyman.servers.server_log import ServerLog

__all__ = ["tell_recovery"]


def tell_recovery(messages: ServerLog, report: RecoveryReport) -> None:
    """Nothing, if all files were whole."""
    for file in report.files:
        if not file.clean:
            messages.warn(
                "the log was damaged; what could be read was read",
                file=file.file,
                places=file.damage_count,
                records=file.records,
                read_behind_damage=file.saved_after_damage,
                lost_at_least=file.lost_at_least,
                put_aside=", ".join(file.quarantined) or "nothing",
            )
        for damage in file.damages:
            messages.warn(
                f"{damage.kind} bytes: {damage.reason}",
                file=file.file,
                offset=damage.offset,
                length=damage.length,
            )
