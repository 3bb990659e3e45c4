"""The console: pages about what the server does, drawn from the same handlers as the HTTP API."""
