-- What happened to each attempt, and when: added, due, started, and how it ended.
SELECT $keys, what, ns
FROM (
    SELECT
        *,
        CASE
            WHEN kind <> 'ended' THEN kind
            WHEN is_success THEN 'completed'
            WHEN outcome = 'failed' THEN 'failed'
            WHEN outcome = 'timed-out' THEN 'timed_out'
            WHEN outcome = 'cut-off' THEN 'cut_off'
            WHEN outcome = 'expired' THEN 'expired'
            WHEN outcome IN ('deleted', 'replaced') THEN 'deleted'
            WHEN outcome = 'cancelled' THEN 'cancelled'
        END AS what,
        CASE
            WHEN kind = 'added' AND first THEN created_ns
            WHEN kind = 'due' AND is_plan THEN ready_ns
            WHEN kind = 'started' THEN started_ns
            WHEN kind = 'ended' THEN counted_end_ns
        END AS ns
    FROM attempts_at
    CROSS JOIN (VALUES ('added'), ('due'), ('started'), ('ended')) AS kinds(kind)
) AS happened
WHERE ns <= $until_ns AND what IS NOT NULL
