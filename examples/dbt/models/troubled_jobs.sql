with last_errors as (
    select
        host,
        log,
        key,
        life,
        max_by(error, attempt) as last_error
    from {{ source('lake', 'attempts') }}
    where error is not null
    group by all
)

select
    jobs.host,
    jobs.dialect,
    jobs.queue,
    jobs.key,
    jobs.status,
    jobs.attempts,
    jobs.failures,
    last_errors.last_error
from {{ source('lake', 'jobs') }} as jobs
left join last_errors using (host, log, key, life)
where jobs.failures > 0
order by jobs.failures desc
