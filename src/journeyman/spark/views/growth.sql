-- Bytes of the records that were written to the logs in each bucket of time.
SELECT
    $keys,
    greatest(ns, $earliest_ns) - (greatest(ns, $earliest_ns) % $bucket_ns + $bucket_ns) % $bucket_ns
        AS bucket_ns,
    CAST(sum(bytes) AS BIGINT) AS bytes,
    min(ns) AS first_ns,
    max(ns) AS last_ns
FROM records
GROUP BY ALL
