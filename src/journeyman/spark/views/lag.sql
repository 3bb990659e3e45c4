-- How many items and bytes each reader of a fan-out queue has before it, and since when.
--
-- Lag is exact, but only as of the last checkpoint of each reader.
SELECT
    readers._log,
    readers.queue,
    readers.reader,
    readers.head,
    readers.tail_id,
    count(items.item_id) AS items_behind,
    CAST(coalesce(sum(items.data_size), 0) AS BIGINT) AS bytes_behind,
    min(items.put_ns) AS oldest_ns
FROM readers
LEFT JOIN items
    ON readers._log = items._log
    AND items.item_id > readers.head
    AND NOT coalesce(array_contains(readers.done, items.item_id), false)
GROUP BY ALL
