"""The ledger on disk: numbered segments, compacted by a snapshot of their fold."""
