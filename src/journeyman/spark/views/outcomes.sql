-- Attempts by how they ended or how they stand, and the moments between which they lie.
SELECT
    $keys,
    outcome,
    count(*) AS attempts,
    count(CASE WHEN is_job THEN 1 END) AS jobs,
    count(started_ns) AS started,
    count(CASE WHEN is_success THEN 1 END) AS succeeded,
    count(CASE WHEN is_failure THEN 1 END) AS failed,
    count(CASE WHEN ended_ns IS NULL AND counted_end_ns IS NOT NULL THEN 1 END) AS unrecorded,
    count(rule) AS with_rule,
    min(least(created_ns, started_ns, counted_end_ns)) AS first_ns,
    max(greatest(created_ns, started_ns, counted_end_ns)) AS last_ns,
    min(CASE WHEN is_plan THEN ready_ns END) AS first_due_ns,
    max(CASE WHEN is_plan THEN ready_ns END) AS last_due_ns
FROM attempts_at
GROUP BY ALL
