"""The kestrel journal in bulk: decode, encode, items."""
