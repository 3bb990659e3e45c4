-- Records of schedules by job, or rule, and the time planned for; removals are groups of their own.
--
-- latest is the position of the last record, times four, plus its status: one number that is
-- compared. What was compacted is known as of its compaction, which is not when it was written. The
-- odd number stands for no time, since DuckDB looks only at rows that have one.
SELECT
    _log,
    identifier AS key,
    kind IN ('rule_set', 'remove_rule') AS is_rule,
    kind IN ('set', 'rule_set') AS is_set,
    execution_ns AS ready_ns,
    max(latest) AS latest,
    CAST(max_by(_length, latest) AS BIGINT) AS last_length,
    min(_position) AS position,
    count(CASE WHEN status = 'planned' THEN 1 END) AS plans,
    min(CASE WHEN status = 'planned' THEN written_ns END) AS created_ns,
    nullif(
        max_by(coalesce(written_ns, -9223372036854775807), latest), -9223372036854775807
    ) AS last_ns
FROM (
    SELECT
        _log, kind, identifier, execution_ns, status, _length, _position,
        _position * 4
            + CASE status WHEN 'triggered' THEN 1 WHEN 'executed' THEN 2 WHEN 'failed' THEN 3 ELSE 0 END
            AS latest,
        CASE WHEN _file NOT LIKE '%.compressed' THEN time_ns END AS written_ns
    FROM records
    WHERE kind <> 'damage'
) AS ordered
GROUP BY ALL
