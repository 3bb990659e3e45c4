"""The shared parts of services: connections, group commit, ports, access, ledger, messages."""
