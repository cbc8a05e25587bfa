-- How many requests waited and ran over time: the most in each step, and at its end.
-- The first step begins with those that were there before.
WITH counted AS (
    SELECT
        at_us,
        seq,
        CASE WHEN $model = '' THEN queued ELSE model_queued END AS queued,
        CASE WHEN $model = '' THEN in_flight ELSE model_in_flight END AS in_flight
    FROM queue_depth
    WHERE at_us < $until_us AND ($model = '' OR model = $model)
),
shown AS (
    FROM counted WHERE at_us >= $since_us
    UNION ALL
    SELECT $since_us, seq, queued, in_flight
    FROM (FROM counted WHERE at_us < $since_us ORDER BY seq DESC LIMIT 1)
    WHERE queued > 0 OR in_flight > 0
)
SELECT
    at_us // $bucket_us * $bucket_us AS at_us,
    max(queued) AS queued_max,
    arg_max(queued, seq) AS queued_last,
    max(in_flight) AS in_flight_max,
    arg_max(in_flight, seq) AS in_flight_last
FROM shown
GROUP BY 1
ORDER BY 1
