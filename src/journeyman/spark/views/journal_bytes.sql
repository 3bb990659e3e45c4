-- Bytes of each file of a fan-out queue that its state needs: puts that some reader is not past; of
-- each reader its last head, and all ids that it has finished. Without a reader nothing is finished.
SELECT
    _log, _segment,
    CAST(sum(CASE WHEN is_live THEN length ELSE 0 END) AS BIGINT)
        + coalesce(max_by(head_length, head_position), 0) AS live_bytes
FROM (
    SELECT
        _log, _segment, length,
        CASE WHEN is_head THEN length END AS head_length,
        CASE WHEN is_head THEN position END AS head_position,
        CASE
            WHEN reader IS NOT NULL THEN kind = 'READ_DONE'
            ELSE kind = 'PUT' AND (is_awaited OR NOT has_reader)
        END AS is_live
    FROM (
        SELECT
            records.*,
            records.reader IS NOT NULL AND records.kind = 'READ_HEAD' AS is_head,
            EXISTS (SELECT 1 FROM readers WHERE readers._log = records._log) AS has_reader,
            EXISTS (
                SELECT 1
                FROM readers
                WHERE readers._log = records._log
                    AND records.item_id > readers.head
                    AND NOT coalesce(array_contains(readers.done, records.item_id), false)
            ) AS is_awaited
        FROM records
    ) AS judged
) AS counted
GROUP BY _log, _segment
