"""Bytes on a connection <-> commands and replies, without a socket.

Each dialect is a machine that is fed bytes and returns commands, and functions that turn replies
into bytes. Nothing here waits, reads a clock or decides what a command does. In each folder:

    parser      bytes -> events: the states of a connection
    commands    what a client can ask for, and every limit
    replies     values -> bytes

    ztick/tokens, ztick/rules            quoting and times; the runner grammar of RULE SET
    workq/readers, workq/fast_path       the words and flags of a line; the usual lines in one step
    foreign, authentication              lines of HTTP and TLS; what the first line must be
"""
