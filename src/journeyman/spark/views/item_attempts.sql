-- Items of fan-out queues as rows of attempts: put, and finished once every reader is past them.
--
-- A journal says when an item was put. When it was delivered or confirmed is written nowhere, so an
-- item has no start and no end. Without a reader nothing is finished.
SELECT
    _log,
    'kestrel' AS dialect,
    CAST(item_id AS STRING) AS key,
    queue,
    CAST(NULL AS STRING) AS task,
    CAST(NULL AS STRING) AS worker,
    CAST(NULL AS STRING) AS rule,
    CAST(NULL AS STRING) AS runner,
    CAST(NULL AS INT) AS life,
    1 AS attempt,
    true AS first,
    put_ns AS created_ns,
    put_ns AS ready_ns,
    CAST(NULL AS BIGINT) AS started_ns,
    CAST(NULL AS BIGINT) AS ended_ns,
    CASE WHEN has_reader AND NOT is_awaited THEN 'finished' ELSE 'waiting' END AS outcome,
    CAST(NULL AS STRING) AS error,
    CAST(NULL AS BOOLEAN) AS retried,
    CAST(NULL AS BOOLEAN) AS exhausted,
    expires_ns,
    position
FROM (
    SELECT
        items.*,
        EXISTS (SELECT 1 FROM readers WHERE readers._log = items._log) AS has_reader,
        EXISTS (
            SELECT 1
            FROM readers
            WHERE readers._log = items._log
                AND items.item_id > readers.head
                AND NOT coalesce(array_contains(readers.done, items.item_id), false)
        ) AS is_awaited
    FROM items
) AS judged
