-- How many jobs each group had, how many attempts started, and how these ended.
SELECT
    $names,
    CAST(sum(jobs) AS BIGINT) AS jobs,
    CAST(sum(attempts) AS BIGINT) AS attempts,
    CAST(sum(started) AS BIGINT) AS started,
    CAST(sum(succeeded) AS BIGINT) AS succeeded,
    CAST(sum(failed) AS BIGINT) AS failed
FROM outcomes
GROUP BY ALL
