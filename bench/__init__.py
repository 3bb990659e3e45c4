"""Measurements, one program per question. ``python -m bench`` runs all; see README.md."""
