-- Per model: requests, success, waits, tokens with their cached share, speed, cost.
SELECT
    model,
    count(*) AS requests,
    count(*) FILTER (outcome = 'ok') / nullif(count(*) FILTER (outcome <> 'cancelled'), 0) AS success_share,
    count(*) FILTER (outcome = 'cancelled') AS cancelled,
    quantile_cont(wait_us, 0.5) AS wait_p50_us,
    quantile_cont(wait_us, 0.95) AS wait_p95_us,
    quantile_cont(ttft_us, 0.5) AS ttft_p50_us,
    quantile_cont(tokens_per_s, 0.5) AS tokens_per_s_p50,
    coalesce(sum(prompt_tokens), 0)::BIGINT AS prompt_tokens,
    sum(cached_tokens) / nullif(sum(cached_tokens) + sum(uncached_tokens), 0) AS cached_share,
    coalesce(sum(completion_tokens), 0)::BIGINT AS completion_tokens,
    sum(cost) AS cost,
    max(arrived_us) AS last_us
FROM requests
WHERE arrived_us >= $since_us AND arrived_us < $until_us AND ($model = '' OR model = $model)
GROUP BY model
ORDER BY requests DESC, model
