-- Failures by reason in each bucket of time: the class of the error, or what the runner said; where
-- the log does not know more, the outcome.
SELECT
    $names,
    bucket_ns,
    outcome,
    reason,
    count(*) AS failures
FROM (
    SELECT
        $keys,
        outcome,
        coalesce(error, outcome) AS reason,
        greatest(counted_end_ns, $earliest_ns)
            - (greatest(counted_end_ns, $earliest_ns) % $bucket_ns + $bucket_ns) % $bucket_ns
            AS bucket_ns
    FROM attempts_at
    WHERE is_failure AND counted_end_ns <= $until_ns
) AS failed
GROUP BY ALL
