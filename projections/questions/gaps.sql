-- The time between two tokens of a stream: percentiles over all gaps, and stalls (gaps of a second or more).
WITH seconds AS (
    FROM token_seconds
    WHERE at_us >= $since_us AND at_us < $until_us
        AND ($model = '' OR rid IN (SELECT rid FROM requests WHERE model = $model))
),
gaps AS (
    SELECT unnest(gaps_us) AS gap_us FROM seconds
)
SELECT
    count(*) AS gaps,
    approx_quantile(gap_us, 0.5)::BIGINT AS gap_p50_us,
    approx_quantile(gap_us, 0.95)::BIGINT AS gap_p95_us,
    approx_quantile(gap_us, 0.99)::BIGINT AS gap_p99_us,
    max(gap_us)::BIGINT AS gap_max_us,
    count(*) FILTER (gap_us >= 1_000_000) AS stalls
FROM gaps
