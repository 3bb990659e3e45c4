-- Rows are days whose count differs from the attempts that started on them: there are none.
with attempts as (
    select cast(to_timestamp(started_ns // 1000000000) at time zone 'UTC' as date) as date, count(*) as started
    from {{ source('lake', 'attempts') }}
    where started_ns is not null
    group by all
),

counted as (
    select date, sum(started) as started
    from {{ source('lake', 'throughput_daily') }}
    where dialect in ('ztick', 'workq')
    group by all
)

select *
from attempts full join counted using (date)
where coalesce(attempts.started, 0) <> coalesce(counted.started, 0)
