#!/bin/sh
# Packs the directory of this file into $BACKUP_TARGET.
set -eu
if [ -z "${BACKUP_TARGET:-}" ]; then
    echo "BACKUP_TARGET is not set: there is nowhere to put the backup" >&2
    exit 3
fi
tar -czf "$BACKUP_TARGET/backup-$(date +%F).tar.gz" -C "$(dirname "$0")" .
