"""The state of one key is the fold of its records; a snapshot turns a state back into records.

One module per dialect, all of one shape:

    key_of(record)               which state a record belongs to
    apply(state, record, notes)  the next state; None is "nothing known of this key"
    fold(records, notes)         the state of one key
    replay(records, notes)       a whole log: {key: state}
    snapshot(state)              records that fold to an equal state

The laws, which tests/property/test_folds.py proves:

    total         every sequence of records has a state; oddities are reported (see anomaly)
    deterministic no clock, no randomness; expiry is a view of a state at a given time
    snapshot      fold(snapshot(fold(rs)) + more) == fold(rs + more)
    locality      replay(rs)[key] == fold(records of that key in rs)

``apply`` may change the state it is given and return it: hand a state on, do not keep it.
docs/folds.md is the specification.
"""
