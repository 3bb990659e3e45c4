-- Attempts of occurrences of timetables, which their identifiers tell: timetable@occurrence.
--
-- A retry is another plan, with attempts of its own: those of an occurrence are counted on.
SELECT
    regexp_extract(key, '^(.+)@', 1) AS timetable,
    regexp_extract(key, '@([^@]+)$$', 1) AS occurrence,
    host, log, dialect, key,
    CAST(row_number() OVER (
        PARTITION BY host, log, key
        ORDER BY coalesce(position, -1), coalesce(ready_ns, 0), attempt
    ) AS INT) AS attempt,
    ready_ns, started_ns, ended_ns, wait_s AS lateness_s, run_s, outcome, _hash, date, is_open
FROM attempts
WHERE dialect = 'ztick'
    AND regexp_extract(
        key,
        '^.+@([0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(Z|[+-][0-9]{2}:[0-9]{2}))$$',
        1
    ) <> ''
