-- Recorded runs of schedules, and plans without one, as rows of attempts.
--
-- The two meet on job and time planned for. A run that the log no longer knows (compaction keeps the
-- last record of a job) is a row all the same; so is a plan of which no run is recorded. A job that
-- no rule matches fails without a run: it has an end and no start.
SELECT
    coalesce(ran._log, planned._log) AS _log,
    'ztick' AS dialect,
    coalesce(ran.key, planned.key) AS key,
    CAST(NULL AS STRING) AS queue,
    CAST(NULL AS STRING) AS task,
    CAST(NULL AS STRING) AS worker,
    ran.rule,
    ran.runner,
    CAST(NULL AS INT) AS life,
    CAST(coalesce(ran.attempt, 1) AS INT) AS attempt,
    coalesce(ran.attempt, 1) = 1 AS first,
    planned.created_ns,
    coalesce(ran.ready_ns, planned.ready_ns) AS ready_ns,
    CASE WHEN ran.rule IS NOT NULL THEN ran.started_ns END AS started_ns,
    coalesce(ran.ended_ns, planned.written_ns) AS ended_ns,
    coalesce(ran.outcome, planned.outcome) AS outcome,
    ran.error,
    CAST(NULL AS BOOLEAN) AS retried,
    CAST(NULL AS BOOLEAN) AS exhausted,
    CAST(NULL AS BIGINT) AS expires_ns,
    planned.position
FROM (
    SELECT
        _log, job AS key, execution_ns AS ready_ns, started_ns, ended_ns, outcome,
        nullif(rule, '') AS rule,
        nullif(runner, '') AS runner,
        substring(nullif(detail, ''), 1, 200) AS error,
        row_number() OVER (
            PARTITION BY _log, job, execution_ns
            ORDER BY started_ns, ended_ns, outcome, detail NULLS FIRST
        ) AS attempt
    FROM runs
) AS ran
FULL OUTER JOIN plan_outcomes AS planned
    ON ran._log = planned._log
    AND ran.key = planned.key
    AND ran.ready_ns = planned.ready_ns
