-- How much was added, was due, started and ended in each bucket of time.
SELECT
    $names,
    greatest(ns, $earliest_ns) - (greatest(ns, $earliest_ns) % $bucket_ns + $bucket_ns) % $bucket_ns
        AS bucket_ns,
    count(CASE WHEN what = 'added' THEN 1 END) AS added,
    count(CASE WHEN what = 'due' THEN 1 END) AS due,
    count(CASE WHEN what = 'started' THEN 1 END) AS started,
    count(CASE WHEN what = 'completed' THEN 1 END) AS completed,
    count(CASE WHEN what = 'failed' THEN 1 END) AS failed,
    count(CASE WHEN what = 'timed_out' THEN 1 END) AS timed_out,
    count(CASE WHEN what = 'cut_off' THEN 1 END) AS cut_off,
    count(CASE WHEN what = 'expired' THEN 1 END) AS expired,
    count(CASE WHEN what = 'deleted' THEN 1 END) AS deleted,
    count(CASE WHEN what = 'cancelled' THEN 1 END) AS cancelled
FROM happenings
GROUP BY ALL
