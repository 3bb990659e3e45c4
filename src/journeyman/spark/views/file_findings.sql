-- Damaged stretches, records of another version, and files with bytes that nothing needs.
SELECT
    CASE kind WHEN 'damage' THEN 'damage' ELSE 'unknown-record' END AS finding,
    _log, CAST(NULL AS STRING) AS key, position,
    coalesce(damage, 'unknown command') || ', ' || CAST(length AS STRING) || ' bytes of ' || _file
        AS detail,
    CAST(NULL AS BIGINT) AS ns_1, CAST(NULL AS BIGINT) AS ns_2, CAST(NULL AS BIGINT) AS ns_3
FROM odd_records
UNION ALL
SELECT
    'dead-bytes', _log, CAST(NULL AS STRING), CAST(NULL AS BIGINT),
    CAST(dead_bytes AS STRING) || ' of ' || CAST(record_bytes AS STRING) || ' bytes ('
        || CAST(CAST(floor(dead_bytes * 100 / record_bytes) AS BIGINT) AS STRING) || ' %) of '
        || _file,
    CAST(NULL AS BIGINT), CAST(NULL AS BIGINT), CAST(NULL AS BIGINT)
FROM segments
WHERE dead_bytes > 0
