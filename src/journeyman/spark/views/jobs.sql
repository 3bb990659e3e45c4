-- What became of each job so far, from all rows of its attempts in a lake: the last one stands.
SELECT
    host, log, dialect, key, life, _hash,
    max(CASE WHEN place = 1 THEN queue END) AS queue,
    max(CASE WHEN place = 1 THEN outcome END) AS status,
    count(started_ns) AS attempts,
    count(CASE WHEN outcome IN ('failed', 'timed-out', 'cut-off') THEN 1 END) AS failures,
    min(created_ns) AS created_ns,
    max(CASE WHEN place = 1 THEN ready_ns END) AS ready_ns,
    max(started_ns) AS started_ns,
    max(CASE WHEN place = 1 THEN ended_ns END) AS ended_ns,
    bool_or(place = 1 AND is_open) AS is_open,
    min(date) AS date
FROM (
    SELECT
        host, log, dialect, key, coalesce(life, 1) AS life, _hash, queue, outcome, created_ns,
        ready_ns, started_ns, ended_ns, is_open, date,
        row_number() OVER (
            PARTITION BY _hash, key, host, log, dialect, coalesce(life, 1)
            ORDER BY coalesce(position, -1) DESC, coalesce(ready_ns, 0) DESC, attempt DESC
        ) AS place
    FROM attempts
) AS ranked
GROUP BY host, log, dialect, key, life, _hash
