-- How requests ended, over time.
SELECT
    ended_us // $bucket_us * $bucket_us AS at_us,
    outcome,
    count(*) AS requests
FROM ended_requests
WHERE ended_us >= $since_us AND ended_us < $until_us AND ($model = '' OR model = $model)
GROUP BY 1, 2
ORDER BY 1, 2
