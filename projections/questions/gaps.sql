-- The time between two tokens of a stream: percentiles to 0.1 ms, and stalls (a second or more).
-- Percentiles are over all gaps of up to a million; of more, over those of every second stream (two million), every third
-- (three), ... The other numbers count all of them.
WITH totals AS MATERIALIZED (
    SELECT
        -- The first frame of a stream ends no gap.
        coalesce(sum(frames) - count(first_frame_us), 0)::BIGINT AS gaps,
        max(gap_max_us) // 100 * 100 AS gap_max_us,
        coalesce(sum(stalls), 0)::BIGINT AS stalls
    FROM token_seconds
    WHERE at_us >= $since_us AND at_us < $until_us
        AND ($model = '' OR rid IN (SELECT rid FROM requests WHERE model = $model))
),
counted AS (
    SELECT gap_us // 100 AS step, count(*) AS gaps
    FROM (
        SELECT unnest(gaps_us) AS gap_us
        FROM token_seconds
        WHERE at_us >= $since_us AND at_us < $until_us
            AND ($model = '' OR rid IN (SELECT rid FROM requests WHERE model = $model))
            AND rid % (SELECT greatest(1, gaps // 1_000_000) FROM totals) = 0
    )
    GROUP BY step
),
ranked AS (
    SELECT step, sum(gaps) OVER (ORDER BY step) / sum(gaps) OVER () AS share FROM counted
)
SELECT
    any_value(totals.gaps) AS gaps,
    min(step) FILTER (share >= 0.5) * 100 AS gap_p50_us,
    min(step) FILTER (share >= 0.95) * 100 AS gap_p95_us,
    min(step) FILTER (share >= 0.99) * 100 AS gap_p99_us,
    any_value(totals.gap_max_us) AS gap_max_us,
    any_value(totals.stalls) AS stalls
FROM totals LEFT JOIN ranked ON true
