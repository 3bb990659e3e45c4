"""What tests of the pipeline need: logs, rows, pieces, and programs to run and kill."""
