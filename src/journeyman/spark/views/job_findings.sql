-- What is wrong with jobs of work queues: odd records, and what became of attempts.
--
-- In a detail, @1 stands for the moment ns_1.
SELECT
    names.finding, odd._log, odd.key, odd.position, names.detail || ', @1' AS detail,
    odd.ns AS ns_1, CAST(NULL AS BIGINT) AS ns_2, CAST(NULL AS BIGINT) AS ns_3
FROM (
    SELECT _log, what, key, position, ns FROM anomalies
    UNION ALL
    SELECT
        _log,
        CASE outcome WHEN 'replaced' THEN 'replaced' WHEN 'expired' THEN 'unrun' ELSE 'due' END,
        key,
        position,
        CASE outcome WHEN 'replaced' THEN ended_ns WHEN 'expired' THEN expires_ns ELSE ready_ns END
    FROM attempts_at
    WHERE dialect = 'workq'
        AND (
            outcome = 'replaced'
            -- Nobody leased it: its time to live ended, or it was scheduled for later and is due.
            OR (
                attempt = 1 AND started_ns IS NULL AND created_ns IS NOT NULL
                AND (
                    outcome = 'expired'
                    OR (outcome = 'waiting' AND ready_ns > created_ns AND ready_ns < $late_ns)
                )
            )
        )
) AS odd
INNER JOIN (
    VALUES
        ('start-after-finish', 'duplicate-execution', 'leased after it was finished'),
        ('second-result', 'duplicate-execution', 'finished once more; the first result stands'),
        ('start-while-leased', 'overlapping-lease', 'leased again while it was leased'),
        ('start-over-limit', 'over-limit', 'leased beyond max-attempts'),
        ('orphan', 'orphan', 'a record of a job that was never added'),
        ('replaced', 'vanished', 'unfinished, and its id was used again: no end is recorded'),
        ('unrun', 'expired-unrun', 'its TTL ended before it was leased'),
        ('due', 'missed-run', 'scheduled, due, and never leased')
) AS names(what, finding, detail)
    ON odd.what = names.what
