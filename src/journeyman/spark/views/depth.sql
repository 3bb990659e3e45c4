-- How many jobs were scheduled, ready and running at the end of each bucket in which that changed.
SELECT
    $names,
    bucket_ns,
    CAST(sum(scheduled) OVER so_far AS BIGINT) AS scheduled,
    CAST(sum(ready) OVER so_far AS BIGINT) AS ready,
    CAST(sum(running) OVER so_far AS BIGINT) AS running
FROM depth_changes
WINDOW so_far AS (
    PARTITION BY $names ORDER BY bucket_ns ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
)
