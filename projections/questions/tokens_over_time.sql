-- Tokens per second over time, of streams, as their data frames came.
SELECT
    at_us,
    frames,
    -- Of a step at an edge, only a part is within the range; what is reported comes about a second's worth at a time.
    frames / (
        greatest(least(at_us + $bucket_us, $until_us) - greatest(at_us, $since_us), least($bucket_us, 5_000_000)) / 1e6
    ) AS frames_per_s,
    gap_max_us,
    stalls
FROM (
    SELECT
        at_us // $bucket_us * $bucket_us AS at_us,
        sum(frames)::BIGINT AS frames,
        max(gap_max_us) AS gap_max_us,
        sum(stalls)::BIGINT AS stalls
    FROM token_seconds
    WHERE at_us >= $since_us AND at_us < $until_us
        AND ($model = '' OR rid IN (SELECT rid FROM requests WHERE model = $model))
    GROUP BY 1
)
ORDER BY at_us
