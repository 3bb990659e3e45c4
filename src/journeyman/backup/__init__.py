"""Backups of a data directory while its server runs, and restoring them.

    data directory --taking--> chunks + one manifest --vault--> a directory or an object store
    data directory <-restoring-- every chunk checked <--+

    vault.py      where backups are kept, and what one is: files, and the chunks they are made of
    taking.py     the moment of a backup, and what is copied
    restoring.py  a backup, or any moment between two, into an empty directory; checking; removing

A file is stored as chunks, each under the name of its SHA-256. So a backup stores
only what the backups before it have not stored, and every byte can be checked. A backup exists as
soon as its manifest does, which is written last: a backup that was cut short leaves chunks that the
next one uses.

What a backup holds: docs/backup.md.
"""

from __future__ import annotations

from journeyman.backup.restoring import (
    RestoredMoment,
    check_backups,
    keep_newest,
    restore,
    restore_at,
)
from journeyman.backup.taking import Memory, Taken, is_changed, take
from journeyman.backup.vault import Manifest, Vault, list_backups, open_vault

__all__ = [
    "Manifest",
    "Memory",
    "RestoredMoment",
    "Taken",
    "Vault",
    "check_backups",
    "is_changed",
    "keep_newest",
    "list_backups",
    "open_vault",
    "restore",
    "restore_at",
    "take",
]
