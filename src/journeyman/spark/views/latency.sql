-- Attempts that started in each bucket: how many, how many of them failed or came late, and
-- percentiles of their waits and run times. $bucket_ns NULL: of all time.
--
-- A percentile is the least length that at least this share of all known ones does not exceed.
SELECT
    $names,
    bucket_ns,
    CAST(sum(CASE WHEN kind = 'wait' THEN starts END) AS BIGINT) AS started,
    CAST(sum(CASE WHEN kind = 'wait' THEN failures END) AS BIGINT) AS failed,
    CAST(sum(CASE WHEN kind = 'wait' THEN over_a_second END) AS BIGINT) AS late,
    min(CASE WHEN kind = 'wait' AND up_to * 1000 >= known * 500 THEN length_ns END) AS wait_p50_ns,
    min(CASE WHEN kind = 'wait' AND up_to * 1000 >= known * 900 THEN length_ns END) AS wait_p90_ns,
    min(CASE WHEN kind = 'wait' AND up_to * 1000 >= known * 950 THEN length_ns END) AS wait_p95_ns,
    min(CASE WHEN kind = 'wait' AND up_to * 1000 >= known * 990 THEN length_ns END) AS wait_p99_ns,
    min(CASE WHEN kind = 'wait' AND up_to * 1000 >= known * 999 THEN length_ns END) AS wait_p999_ns,
    max(CASE WHEN kind = 'wait' THEN most_ns END) AS wait_max_ns,
    min(CASE WHEN kind = 'run' AND up_to * 1000 >= known * 500 THEN length_ns END) AS run_p50_ns,
    min(CASE WHEN kind = 'run' AND up_to * 1000 >= known * 900 THEN length_ns END) AS run_p90_ns,
    min(CASE WHEN kind = 'run' AND up_to * 1000 >= known * 950 THEN length_ns END) AS run_p95_ns,
    min(CASE WHEN kind = 'run' AND up_to * 1000 >= known * 990 THEN length_ns END) AS run_p99_ns,
    min(CASE WHEN kind = 'run' AND up_to * 1000 >= known * 999 THEN length_ns END) AS run_p999_ns,
    max(CASE WHEN kind = 'run' THEN most_ns END) AS run_max_ns
FROM (
    SELECT
        *,
        sum(CASE WHEN length_ns IS NOT NULL THEN starts ELSE 0 END) OVER (
            PARTITION BY $names, bucket_ns, kind ORDER BY length_ns NULLS FIRST
            ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
        ) AS up_to,
        sum(CASE WHEN length_ns IS NOT NULL THEN starts ELSE 0 END) OVER (
            PARTITION BY $names, bucket_ns, kind
        ) AS known
    FROM lengths
) AS ranked
GROUP BY ALL
