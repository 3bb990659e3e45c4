-- Bytes of each file of a schedule's log that its state needs: the last record of each job and rule
-- that exists. latest is four times a position, plus a status; a position begins with the segment.
SELECT
    _log,
    CAST((latest - latest % 70368744177664) / 70368744177664 AS INT) AS _segment,
    CAST(sum(length) AS BIGINT) AS live_bytes
FROM (
    SELECT
        _log, key, is_rule,
        max(latest) AS latest,
        max(CASE WHEN is_set THEN latest END) AS latest_set,
        max_by(last_length, latest) AS length
    FROM plans
    GROUP BY _log, key, is_rule
) AS last_records
WHERE latest = latest_set
GROUP BY ALL
