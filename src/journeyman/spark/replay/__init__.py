"""The final state of logs, by Spark: state tables (state_tables.py), made in tasks (*_tasks.py).

Each is made of a DataFrame of the source, reduced or not, of any number of logs, and has one row a
key: what the fold of journeyman.folds says of that key (tests/spark/test_replay_*.py).

    source, reduce=...  ->  packets  ->  shuffle by bucket of the key  ->  merge
    source              ->  packets, made in Python tasks  ->  the same

The reduced way is the fast one: no record becomes a row before it is folded. Columns of the tables:
docs/state-tables.md.
"""
