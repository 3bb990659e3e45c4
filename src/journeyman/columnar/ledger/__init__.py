"""The ledger as Arrow."""
