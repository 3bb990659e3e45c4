-- The ids of items in each segment of a fan-out queue, and how many different ones there are.
SELECT
    _log, _segment, _file, queue,
    min(item_id) AS first_id,
    max(item_id) AS last_id,
    CAST(sum(CASE WHEN ordinal = 0 THEN 1 ELSE 0 END) AS BIGINT) AS ids,
    min(position) AS position
FROM items
GROUP BY ALL
