-- How many requests waited and ran over time: the most in each step, and at its end.
SELECT
    at_us // $bucket_us * $bucket_us AS at_us,
    max(CASE WHEN $model = '' THEN queued ELSE model_queued END) AS queued_max,
    arg_max(CASE WHEN $model = '' THEN queued ELSE model_queued END, seq) AS queued_last,
    max(CASE WHEN $model = '' THEN in_flight ELSE model_in_flight END) AS in_flight_max,
    arg_max(CASE WHEN $model = '' THEN in_flight ELSE model_in_flight END, seq) AS in_flight_last
FROM queue_depth
WHERE at_us >= $since_us AND at_us < $until_us AND ($model = '' OR model = $model)
GROUP BY 1
ORDER BY 1
