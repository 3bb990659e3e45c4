"""What was found when a log was opened, as lines of the server's log: one a file, one a damage."""

from __future__ import annotations

from journeyman.logs.recovery import FileReport, RecoveryReport
from journeyman.logs.sealed_reading import is_in_flight
from journeyman.servers.core.server_log import ServerLog


def tell_recovery(
    messages: ServerLog, report: RecoveryReport, *, path: str = "", queue: str | None = None
) -> None:
    """Nothing, if all files were whole. ``path``, ``queue``: the log as commands name it."""
    for file in report.files:
        unsealed = [damage for damage in file.damages if is_in_flight(damage)]
        if file.damage_count > len(unsealed):
            messages.warn(
                "the log was damaged; what could be read was read",
                file=file.file,
                places=file.damage_count - len(unsealed),
                records=file.records,
                read_behind_damage=file.saved_after_damage,
                lost_at_least=file.lost_at_least,
                put_aside=", ".join(file.quarantined) or "nothing",
            )
        for damage in file.damages:
            if is_in_flight(damage):
                _tell_unsealed(messages, file, damage.offset, damage.length, path, queue)
                continue
            messages.warn(
                f"{damage.kind} bytes: {damage.reason}",
                file=file.file,
                offset=damage.offset,
                length=damage.length,
            )


def _tell_unsealed(
    messages: ServerLog, file: FileReport, offset: int, length: int, path: str, queue: str | None
) -> None:
    """What a crash has cut short; and how to take it back all the same."""
    aside = file.quarantined[-1] if file.quarantined else "nowhere"
    of_queue = f" --queue {queue}" if queue is not None else ""
    messages.warn(
        "the last batch was never acknowledged and was set aside; to take its records back, stop "
        f"the server and run: journeyman repair {path}{of_queue} --take-back {aside}",
        file=file.file,
        offset=offset,
        length=length,
    )
