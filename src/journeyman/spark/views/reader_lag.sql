-- The furthest that each reader of a fan-out queue was behind in each hour, as far as it was seen.
SELECT
    host, log, queue, reader,
    date_trunc('hour', observed_at) AS hour,
    max(items_behind) AS items_behind,
    max(bytes_behind) AS bytes_behind
FROM readers
GROUP BY ALL
