-- How often each wait and each run time occurred among the attempts that started in each bucket.
--
-- Lengths are rounded down to four digits, so that there are few of them whatever the size of a
-- log, and counts of its parts can be added up. Percentiles are off by less than 0.1 %.
SELECT
    $names,
    bucket_ns,
    kind,
    CASE
        WHEN ns < 10000 THEN ns
        WHEN ns < 100000 THEN ns - ns % 10
        WHEN ns < 1000000 THEN ns - ns % 100
        WHEN ns < 10000000 THEN ns - ns % 1000
        WHEN ns < 100000000 THEN ns - ns % 10000
        WHEN ns < 1000000000 THEN ns - ns % 100000
        WHEN ns < 10000000000 THEN ns - ns % 1000000
        WHEN ns < 100000000000 THEN ns - ns % 10000000
        WHEN ns < 1000000000000 THEN ns - ns % 100000000
        WHEN ns < 10000000000000 THEN ns - ns % 1000000000
        WHEN ns < 100000000000000 THEN ns - ns % 10000000000
        WHEN ns < 1000000000000000 THEN ns - ns % 100000000000
        WHEN ns < 10000000000000000 THEN ns - ns % 1000000000000
        WHEN ns < 100000000000000000 THEN ns - ns % 10000000000000
        WHEN ns < 1000000000000000000 THEN ns - ns % 100000000000000
        ELSE ns - ns % 1000000000000000
    END AS length_ns,
    count(*) AS starts,
    count(CASE WHEN is_failure THEN 1 END) AS failures,
    count(CASE WHEN ns > 1000000000 THEN 1 END) AS over_a_second,
    max(ns) AS most_ns
FROM (
    SELECT
        $keys,
        kind,
        is_failure,
        greatest(started_ns, $earliest_ns)
            - (greatest(started_ns, $earliest_ns) % $bucket_ns + $bucket_ns) % $bucket_ns
            AS bucket_ns,
        CASE WHEN kind = 'wait' THEN wait_ns ELSE run_ns END AS ns
    FROM attempts_at
    CROSS JOIN (VALUES ('wait'), ('run')) AS kinds(kind)
    WHERE started_ns <= $until_ns
) AS measured
GROUP BY ALL
