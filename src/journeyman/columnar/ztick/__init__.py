"""The ztick log in bulk: decode, encode, and the latest record of each job and rule."""
