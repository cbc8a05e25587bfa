-- Waits over time: p50, p95 and the longest, of the requests that arrived in each step.
SELECT at_us, requests, waits_us[1] AS wait_p50_us, waits_us[2] AS wait_p95_us, wait_max_us
FROM (
    SELECT
        arrived_us // $bucket_us * $bucket_us AS at_us,
        count(*) AS requests,
        quantile_cont(wait_us, [0.5, 0.95]) AS waits_us,
        max(wait_us) AS wait_max_us
    FROM requests
    WHERE arrived_us >= $since_us AND arrived_us < $until_us AND ($model = '' OR model = $model) AND wait_us IS NOT NULL
    GROUP BY 1
)
ORDER BY at_us
