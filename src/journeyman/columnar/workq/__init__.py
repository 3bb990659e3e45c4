"""The workq log in bulk: decode, encode, fold."""
