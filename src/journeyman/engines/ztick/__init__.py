"""The schedule decides: jobs, rules and runs."""
