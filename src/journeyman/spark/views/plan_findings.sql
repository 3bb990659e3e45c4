-- What is wrong with the plans and runs of schedules.
--
-- attempts are runs and plans as history has them, planned are the plans as the log alone has them,
-- plans its records by job and time planned for. @1 to @3 stand for the moments ns_1 to ns_3.
--
-- More runs of a plan than times it was planned; a log that was compacted shows one plan.
SELECT
    'duplicate-execution' AS finding, ran._log, ran.key, plans.position,
    'ran ' || CAST(ran.runs AS STRING) || ' times for @1: first @2, last @3' AS detail,
    ran.ready_ns AS ns_1, ran.first_ns AS ns_2, ran.last_ns AS ns_3
FROM (
    SELECT
        _log, key, ready_ns,
        count(*) AS runs,
        min(coalesce(started_ns, ended_ns)) AS first_ns,
        max(coalesce(started_ns, ended_ns)) AS last_ns
    FROM attempts
    WHERE dialect = 'ztick' AND outcome <> 'cut-off'
    GROUP BY ALL
) AS ran
LEFT JOIN plans
    ON ran._log = plans._log
    AND ran.key = plans.key
    AND ran.ready_ns = plans.ready_ns
    AND plans.is_set
    AND NOT plans.is_rule
WHERE ran.runs > greatest(coalesce(plans.plans, 1), 1)
UNION ALL
SELECT
    'cut-off-run', _log, key, position,
    'cut off by a stop at @1, by rule ' || coalesce(rule, ''),
    ended_ns, CAST(NULL AS BIGINT), CAST(NULL AS BIGINT)
FROM attempts
WHERE dialect = 'ztick' AND outcome = 'cut-off'
UNION ALL
SELECT
    CASE outcome WHEN 'planned' THEN 'missed-run' ELSE 'never-executed' END, _log, key, position,
    CASE outcome
        WHEN 'planned' THEN 'due at @1: still planned' ELSE 'due at @1: triggered, no end recorded'
    END,
    ready_ns, CAST(NULL AS BIGINT), CAST(NULL AS BIGINT)
FROM planned
WHERE outcome IN ('planned', 'triggered') AND ready_ns < $late_ns
UNION ALL
-- Removals of what was never set, as far as the log goes back.
SELECT
    'orphan', _log, key, min(position),
    CASE
        WHEN is_rule THEN 'removal of a rule that this log does not know'
        ELSE 'removal of a job that this log does not know'
    END,
    CAST(NULL AS BIGINT), CAST(NULL AS BIGINT), CAST(NULL AS BIGINT)
FROM plans
GROUP BY _log, key, is_rule
HAVING NOT bool_or(is_set)
