-- How many jobs came to a state, less those that left it, in each bucket of time.
--
--     row of attempts         created      ready          started          ended
--     scheduled                  +1          -1
--     ready                                  +1              -1
--     running                                                +1              -1
--
-- Items of a fan-out queue have no recorded end: finished ones are left out, so the sums show since
-- when the present backlog has waited. A plan of a schedule waits from the time that it was planned
-- for to its first run; how long it waited to be run again is recorded nowhere. Plans that ended
-- without a recorded run never show up; triggered ones without a run run since the planned time.
SELECT
    $names,
    greatest(ns, $earliest_ns) - (greatest(ns, $earliest_ns) % $bucket_ns + $bucket_ns) % $bucket_ns
        AS bucket_ns,
    CAST(sum(CASE WHEN state = 'scheduled' THEN step ELSE 0 END) AS BIGINT) AS scheduled,
    CAST(sum(CASE WHEN state = 'ready' THEN step ELSE 0 END) AS BIGINT) AS ready,
    CAST(sum(CASE WHEN state = 'running' THEN step ELSE 0 END) AS BIGINT) AS running
FROM (
    SELECT
        $keys, state, step,
        CASE
            WHEN state = 'scheduled' AND first AND created_ns < from_ns
            THEN CASE WHEN step = 1 THEN created_ns ELSE from_ns END
            WHEN state = 'ready' AND from_ns IS NOT NULL
            THEN CASE WHEN step = 1 THEN from_ns ELSE left_ns END
            WHEN state = 'running' AND began_ns IS NOT NULL
            THEN CASE WHEN step = 1 THEN began_ns ELSE ended_ns END
        END AS ns
    FROM (
        SELECT
            *,
            -- A job may be ended before it is due, and a clock may step back.
            CASE
                WHEN dialect = 'ztick' AND NOT first THEN began_ns ELSE least(ready_ns, left_ns)
            END AS from_ns
        FROM (
            SELECT
                *,
                coalesce(started_ns, CASE WHEN outcome = 'triggered' THEN ready_ns END) AS began_ns,
                coalesce(
                    started_ns, CASE WHEN outcome = 'triggered' THEN ready_ns END, ended_ns
                ) AS left_ns
            FROM attempts_at
            WHERE outcome NOT IN ('finished', 'replanned', 'removed')
                AND coalesce(life, 1) <> 0
                AND NOT (outcome IN ('executed', 'failed') AND ended_ns IS NULL)
        ) AS begun
    ) AS waited
    CROSS JOIN (
        VALUES
            ('scheduled', 1), ('scheduled', -1), ('ready', 1), ('ready', -1),
            ('running', 1), ('running', -1)
    ) AS steps(state, step)
) AS changed
WHERE ns <= $until_ns
GROUP BY ALL
