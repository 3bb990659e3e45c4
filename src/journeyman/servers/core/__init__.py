"""What all services share: connections, group commit, ports, access, ledger, store, messages."""
