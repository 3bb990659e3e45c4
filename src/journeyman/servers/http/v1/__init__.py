"""Version 1 of the HTTP API: the routes of each service, and the values they take and give."""
