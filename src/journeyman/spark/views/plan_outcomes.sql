-- What became of each plan of a schedule, as far as its log says: the last one of a job stands; one
-- before it that has not ended was replanned or removed. A plan may come in several parts.
SELECT
    _log, key, ready_ns, position, created_ns,
    CASE
        WHEN latest % 4 = 2 THEN 'executed'
        WHEN latest % 4 = 3 THEN 'failed'
        WHEN following = 'set' THEN 'replanned'
        WHEN following = 'removed' THEN 'removed'
        WHEN latest % 4 = 1 THEN 'triggered'
        ELSE 'planned'
    END AS outcome,
    CASE WHEN latest % 4 >= 2 THEN last_ns END AS written_ns
FROM (
    SELECT
        *,
        lead(CASE WHEN ready_ns IS NULL THEN 'removed' ELSE 'set' END) OVER (
            PARTITION BY _log, key ORDER BY latest
        ) AS following
    FROM (
        SELECT
            _log, key, ready_ns,
            max(latest) AS latest,
            min(position) AS position,
            min(created_ns) AS created_ns,
            nullif(
                max_by(coalesce(last_ns, -9223372036854775807), latest), -9223372036854775807
            ) AS last_ns
        FROM plans
        GROUP BY _log, key, ready_ns
    ) AS whole_plans
) AS followed
WHERE ready_ns IS NOT NULL
