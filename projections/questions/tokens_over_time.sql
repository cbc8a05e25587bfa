-- Tokens per second over time, of streams, as their data frames came.
SELECT
    at_us // $bucket_us * $bucket_us AS at_us,
    sum(frames)::BIGINT AS frames,
    sum(frames) / ($bucket_us / 1e6) AS frames_per_s,
    max(gap_max_us) AS gap_max_us,
    sum(stalls)::BIGINT AS stalls
FROM token_seconds
WHERE at_us >= $since_us AND at_us < $until_us
    AND ($model = '' OR rid IN (SELECT rid FROM requests WHERE model = $model))
GROUP BY 1
ORDER BY 1
