-- What is wrong with the items and readers of fan-out queues.
--
-- Ids are given out one after the other, so a hole between two that are there is an item that was
-- lost. A damaged journal may hold any number as an id: differences have more than 64 bits.
SELECT
    'vanished' AS finding, _log, queue AS key, position,
    'ids missing: ' || CAST(before_ids AS STRING) || ' before ' || CAST(first_id AS STRING) || ', '
        || CAST(inside_ids AS STRING) || ' after it in ' || _file AS detail,
    CAST(NULL AS BIGINT) AS ns_1, CAST(NULL AS BIGINT) AS ns_2, CAST(NULL AS BIGINT) AS ns_3
FROM (
    SELECT
        *,
        greatest(coalesce(CAST(first_id AS DECIMAL(20, 0)) - previous_id - 1, 0), 0) AS before_ids,
        greatest(CAST(last_id AS DECIMAL(20, 0)) - first_id + 1 - ids, 0) AS inside_ids
    FROM (
        SELECT *, lag(last_id) OVER (PARTITION BY _log ORDER BY _segment) AS previous_id
        FROM item_ids
    ) AS followed
) AS counted
WHERE before_ids + inside_ids > 0
UNION ALL
SELECT
    'reused-id', _log, CAST(item_id AS STRING), position,
    'another item of queue ' || queue || ' has this id; both are kept',
    CAST(NULL AS BIGINT), CAST(NULL AS BIGINT), CAST(NULL AS BIGINT)
FROM items
WHERE ordinal > 0
UNION ALL
SELECT
    finding, _log, reader, position,
    'reader ''' || reader || ''' of queue ' || queue || ': head '
        || coalesce(CAST(head AS STRING), 'not known') || ', items ' || CAST(first_id AS STRING)
        || ' to ' || CAST(tail_id AS STRING),
    CAST(NULL AS BIGINT), CAST(NULL AS BIGINT), CAST(NULL AS BIGINT)
FROM (
    SELECT
        *,
        CASE
            WHEN damaged THEN 'checkpoint-damaged'
            WHEN greatest(head, coalesce(last_done, head)) > tail_id THEN 'reader-ahead'
            WHEN head < CAST(first_id AS DECIMAL(20, 0)) - 1 THEN 'reader-behind'
        END AS finding
    FROM readers
) AS judged
WHERE finding IS NOT NULL
