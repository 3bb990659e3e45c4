-- Rows of attempts as they stood at a moment, with what every figure needs to know of them.
--
-- A job whose time to live is over has expired, although a work queue may not have logged it yet
-- and a journal never does. Without a moment ($as_of_ns is NULL) only what the logs say counts.
SELECT
    $places, dialect, key, queue, task, worker, rule, runner, life, attempt, first,
    created_ns, ready_ns, started_ns, ended_ns,
    -- Logged times may step back, so no length is negative. The sum keeps out what 64 bits do
    -- not hold: that length is not known.
    CASE
        WHEN started_ns <= ready_ns THEN 0
        WHEN started_ns <= 9223372036854775807 + least(ready_ns, 0) THEN started_ns - ready_ns
    END AS wait_ns,
    CASE
        WHEN ended_ns <= started_ns THEN 0
        WHEN ended_ns <= 9223372036854775807 + least(started_ns, 0) THEN ended_ns - started_ns
    END AS run_ns,
    outcome, error, retried, exhausted, expires_ns, position,
    -- A run of a schedule that no server recorded has no times of its own (no rule matched, or
    -- no history was kept): it counts as ended at the time that it was planned for.
    CASE
        WHEN ended_ns IS NULL AND dialect = 'ztick' AND outcome IN ('executed', 'failed')
        THEN ready_ns ELSE ended_ns
    END AS counted_end_ns,
    -- A plan of a schedule is due once, however often it runs.
    dialect = 'ztick' AND first AND outcome NOT IN ('replanned', 'removed') AS is_plan,
    -- A job is added once, whatever attempts follow; of orphaned records the add is not known.
    CASE
        WHEN dialect = 'ztick' THEN first AND outcome NOT IN ('replanned', 'removed')
        ELSE first AND created_ns IS NOT NULL
    END AS is_job,
    outcome IN ('completed', 'executed') AS is_success,
    outcome IN ('failed', 'timed-out', 'cut-off') AS is_failure
FROM (
    SELECT
        $places, dialect, key, queue, task, worker, rule, runner, life, attempt, first,
        created_ns, ready_ns, started_ns, error, retried, exhausted, expires_ns, position,
        CASE WHEN is_over THEN expires_ns ELSE ended_ns END AS ended_ns,
        CASE WHEN is_over THEN 'expired' ELSE outcome END AS outcome
    FROM (
        SELECT
            *,
            coalesce(outcome IN ('waiting', 'leased') AND expires_ns <= $as_of_ns, false) AS is_over
        FROM attempts
    ) AS judged
) AS stood
