-- Swaps: why, for whom, who left, and what it cost.
SELECT
    swap,
    begun_us,
    target,
    why,
    cause_rid,
    coalesce((
        SELECT string_agg(model, ', ' ORDER BY place) FROM swap_candidates AS each WHERE each.swap = swaps.swap AND chosen
    ), '') AS victims,
    waited_us,
    drain_us,
    stop_us,
    load_us,
    took_us,
    outcome
FROM swaps
WHERE begun_us >= $since_us AND begun_us < $until_us AND ($model = '' OR target = $model)
ORDER BY begun_us DESC, swap DESC
