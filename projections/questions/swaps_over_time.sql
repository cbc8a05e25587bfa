-- Swaps over time on each GPU: how many began in each step, and the last of them.
SELECT
    gpu,
    begun_us // $bucket_us * $bucket_us AS at_us,
    count(*) AS swaps,
    max(swap) AS swap,
    max(begun_us) AS begun_us,
    arg_max(target, swap) AS target,
    arg_max(why, swap) AS why,
    arg_max(took_us, swap) AS took_us,
    sum(took_us)::BIGINT AS swapping_us
FROM (
    SELECT swap, begun_us, target, why, took_us, unnest(footprint) AS gpu
    FROM swaps
    WHERE begun_us >= $since_us AND begun_us < $until_us AND target <> '' AND ($model = '' OR target = $model)
)
GROUP BY gpu, 2
ORDER BY gpu, 2
