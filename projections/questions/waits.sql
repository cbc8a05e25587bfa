-- How long requests waited for their replica, and how much of that was loading; percentiles per model.
SELECT
    model,
    count(*) AS requests,
    quantile_cont(wait_us, 0.5) AS wait_p50_us,
    quantile_cont(wait_us, 0.95) AS wait_p95_us,
    max(wait_us) AS wait_max_us,
    quantile_cont(load_wait_us, 0.95) AS load_wait_p95_us,
    count(*) FILTER (load_wait_us > 0) AS waited_for_load,
    quantile_cont(ttft_us, 0.5) AS ttft_p50_us,
    quantile_cont(ttft_us, 0.95) AS ttft_p95_us
FROM requests
WHERE arrived_us >= $since_us AND arrived_us < $until_us AND ($model = '' OR model = $model) AND wait_us IS NOT NULL
GROUP BY model
ORDER BY model
