-- Attempts of a work queue with what the ledger beside its log says of them: which worker leased
-- each, and which failures were cancellations.
--
-- A lease is noted soon after it began. An id may be used again, so the first note after the start
-- counts. A job was cancelled if it failed at exactly the noted moment.
SELECT
    attempts._log, attempts.dialect, attempts.key, attempts.queue, attempts.task, leases.worker,
    attempts.rule, attempts.runner, attempts.life, attempts.attempt, attempts.first,
    attempts.created_ns, attempts.ready_ns, attempts.started_ns, attempts.ended_ns,
    CASE
        WHEN attempts.outcome = 'failed' AND cancellations.ns IS NOT NULL THEN 'cancelled'
        ELSE attempts.outcome
    END AS outcome,
    CASE WHEN cancellations.ns IS NULL THEN attempts.error END AS error,
    attempts.retried, attempts.exhausted, attempts.expires_ns, attempts.position
FROM attempts
LEFT JOIN (
    SELECT
        leased._log, leased.key, leased.position, min_by(notes.worker, notes.ns) AS worker
    FROM attempts AS leased
    INNER JOIN notes
        ON leased.place = notes.place
        AND leased.key = notes.key
        AND leased.attempt = notes.attempt
        AND leased.started_ns <= notes.ns
    GROUP BY ALL
) AS leases
    ON attempts._log = leases._log
    AND attempts.key = leases.key
    AND attempts.position = leases.position
LEFT JOIN (SELECT DISTINCT place, key, ns FROM notes WHERE attempt IS NULL) AS cancellations
    ON attempts.place = cancellations.place
    AND attempts.key = cancellations.key
    AND attempts.ended_ns = cancellations.ns
