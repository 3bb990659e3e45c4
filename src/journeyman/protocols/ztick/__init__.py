"""The ztick protocol, server side: a connection as a machine that is fed bytes and gives events."""
