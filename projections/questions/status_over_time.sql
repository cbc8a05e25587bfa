-- What each GPU did over time: swapping before serving before idle; inactive while no router ran.
WITH known AS (
    SELECT gpu FROM gpus
    UNION
    SELECT unnest(gpus) FROM model_configs
),
-- What begins in the same step, a small part of the range, is taken as one: a month has a million requests.
serving AS (
    SELECT
        unnest(gpus) AS gpu,
        min(dispatched_us) AS from_us,
        CASE WHEN count(*) = count(ended_us) THEN max(ended_us) END AS until_us
    FROM (
        SELECT replica, dispatched_us, ended_us FROM ended_requests
        WHERE ended_us > $since_us AND dispatched_us < $until_us AND slots_wanted > 0
        UNION ALL
        SELECT replica, dispatched_us, NULL FROM open_requests
        WHERE stage = 'running' AND dispatched_us < $until_us AND slots_wanted > 0
    )
    JOIN (SELECT replica, gpus FROM replicas) USING (replica)
    GROUP BY gpus, dispatched_us // greatest(1, ($until_us - $since_us) // 5000)
),
-- How many of each kind there are at a moment is one number, since sums cost the most here: those that run below 2^20,
-- those that swap below 2^40, those that serve above.
spans AS (
    -- Of a run that the log no longer has the beginning of, it is not known.
    SELECT gpu, 1 AS kind, coalesce(started_us, 0) AS from_us,
        CASE WHEN run < (SELECT max(run) FROM runs) THEN coalesce(stopped_us, last_us) ELSE stopped_us END AS until_us
    FROM runs, known
    UNION ALL
    SELECT gpu, 1 << 20, from_us, until_us FROM residency WHERE phase <> 'ready'
    UNION ALL
    -- Its victims drain before anything stops or loads.
    SELECT unnest(footprint), 1 << 20, begun_us, ended_us FROM swaps
    UNION ALL
    SELECT gpu, 1::BIGINT << 40, from_us, until_us FROM serving
),
cut AS (
    SELECT
        gpu,
        kind,
        greatest(from_us, $since_us) AS from_us,
        least(coalesce(until_us, $until_us), $until_us) AS until_us
    FROM spans
    -- A clock that was set back may let something end before it began: that is nothing.
    WHERE gpu IN (SELECT gpu FROM known)
        AND from_us < $until_us AND coalesce(until_us, $until_us) > greatest(from_us, $since_us)
),
marks AS (
    SELECT gpu, $since_us AS at_us, 0 AS change FROM known
    UNION ALL
    SELECT gpu, from_us, kind FROM cut
    UNION ALL
    SELECT gpu, until_us, -kind FROM cut
),
levels AS (
    SELECT gpu, at_us, (sum(sum(change)) OVER (PARTITION BY gpu ORDER BY at_us))::BIGINT AS counts
    FROM marks
    GROUP BY gpu, at_us
),
statuses AS (
    SELECT
        gpu,
        at_us,
        CASE
            WHEN counts & 1048575 = 0 THEN 'inactive'
            WHEN counts >> 20 & 1048575 > 0 THEN 'swapping'
            WHEN counts >> 40 > 0 THEN 'serving'
            ELSE 'idle'
        END AS status
    FROM levels
),
turns AS (
    SELECT gpu, at_us, status FROM statuses
    QUALIFY status IS DISTINCT FROM lag(status) OVER (PARTITION BY gpu ORDER BY at_us)
)
SELECT
    gpu,
    status,
    at_us AS from_us,
    coalesce(lead(at_us) OVER (PARTITION BY gpu ORDER BY at_us), $until_us) AS until_us
FROM turns
QUALIFY from_us < until_us
ORDER BY gpu, from_us
