"""What all services share: connections, group commit, listening, access, the server log."""
