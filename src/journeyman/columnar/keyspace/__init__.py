"""The keyspace in bulk: decode, encode, and its file."""
