-- The account of every file: records, the bytes of these that the state needs, damage.
--
-- A byte is live when the state needs its record: the last SET of a job or rule that exists, every
-- record of a work job that exists, an item that some reader still has to be given, the last head
-- of a reader. `journeyman verify` counts the same.
SELECT
    files.dialect, files._log, files._segment, files._file, files.records, files.record_bytes,
    coalesce(live.live_bytes, 0) AS live_bytes,
    files.record_bytes - coalesce(live.live_bytes, 0) AS dead_bytes,
    files.damages, files.damaged_bytes
FROM files
LEFT JOIN live
    ON files._log = live._log
    AND files._segment = live._segment
