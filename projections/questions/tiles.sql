-- The numbers of a time range at a glance: requests, success, waits, tokens and their cached share, swaps, waste.
WITH arrived AS (
    FROM requests
    WHERE arrived_us >= $since_us AND arrived_us < $until_us AND ($model = '' OR model = $model)
),
counted AS (
    SELECT
        count(*) AS requests,
        count(*) FILTER (outcome IS NULL) AS open,
        count(*) FILTER (outcome = 'ok') AS ok,
        count(*) FILTER (outcome = 'cancelled') AS cancelled,
        count(*) FILTER (outcome IN ('error', 'failed', 'rejected', 'lost')) AS failed,
        -- A client that left is neither a success nor a failure.
        count(*) FILTER (outcome = 'ok') / nullif(count(*) FILTER (outcome <> 'cancelled'), 0) AS success_share,
        quantile_cont(wait_us, [0.5, 0.95]) AS wait_us,
        quantile_cont(ttft_us, [0.5, 0.95]) AS ttft_us,
        coalesce(sum(prompt_tokens), 0)::BIGINT AS prompt_tokens,
        coalesce(sum(cached_tokens), 0)::BIGINT AS cached_tokens,
        sum(cached_tokens) / nullif(sum(cached_tokens) + sum(uncached_tokens), 0) AS cached_share,
        coalesce(sum(completion_tokens), 0)::BIGINT AS completion_tokens,
        coalesce(sum(unread_frames), 0)::BIGINT AS unread_frames,
        sum(cost) AS cost
    FROM arrived
),
swapped AS (
    SELECT
        count(*) AS swaps,
        coalesce(sum(took_us), 0)::BIGINT AS swapping_us
    FROM swaps
    WHERE begun_us >= $since_us AND begun_us < $until_us AND target <> '' AND ($model = '' OR target = $model)
),
crashed AS (
    SELECT count(*) AS crashes
    FROM crashes
    WHERE at_us >= $since_us AND at_us < $until_us AND ($model = '' OR model = $model)
)
SELECT
    requests,
    open,
    ok,
    cancelled,
    failed,
    success_share,
    wait_us[1] AS wait_p50_us,
    wait_us[2] AS wait_p95_us,
    ttft_us[1] AS ttft_p50_us,
    ttft_us[2] AS ttft_p95_us,
    prompt_tokens,
    cached_tokens,
    cached_share,
    completion_tokens,
    unread_frames,
    cost,
    swaps,
    swapping_us,
    crashes
FROM counted CROSS JOIN swapped CROSS JOIN crashed
