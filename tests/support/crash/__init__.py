"""Killing servers and cutting the power: the loops, the loads and the ledgers."""
