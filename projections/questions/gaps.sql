-- The time between two tokens of a stream: percentiles over all gaps, to 0.1 ms, and stalls (a second or more).
WITH counted AS (
    SELECT gap_us // 100 AS step, count(*) AS gaps
    FROM (
        SELECT unnest(gaps_us) AS gap_us
        FROM token_seconds
        WHERE at_us >= $since_us AND at_us < $until_us
            AND ($model = '' OR rid IN (SELECT rid FROM requests WHERE model = $model))
    )
    GROUP BY step
),
ranked AS (
    SELECT step, gaps, sum(gaps) OVER (ORDER BY step) / sum(gaps) OVER () AS share FROM counted
)
SELECT
    coalesce(sum(gaps), 0)::BIGINT AS gaps,
    min(step) FILTER (share >= 0.5) * 100 AS gap_p50_us,
    min(step) FILTER (share >= 0.95) * 100 AS gap_p95_us,
    min(step) FILTER (share >= 0.99) * 100 AS gap_p99_us,
    max(step) * 100 AS gap_max_us,
    coalesce(sum(gaps) FILTER (step >= 10_000), 0)::BIGINT AS stalls
FROM ranked
