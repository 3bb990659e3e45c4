select
    concat_ws('|', throughput.host, throughput.dialect, throughput.queue, throughput.date) as queue_day,
    throughput.host,
    throughput.dialect,
    throughput.queue,
    throughput.date,
    throughput.added,
    throughput.started,
    throughput.completed,
    throughput.failed + throughput.timed_out + throughput.cut_off as failed,
    latency.wait_p95_s,
    latency.run_p95_s
from {{ source('lake', 'throughput_daily') }} as throughput
left join {{ source('lake', 'latency_daily') }} as latency using (host, dialect, queue, date)
