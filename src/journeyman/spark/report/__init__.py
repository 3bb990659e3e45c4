"""The HTML report: figures, charts, wording."""
