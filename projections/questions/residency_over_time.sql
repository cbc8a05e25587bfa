-- Which model was on which GPU over time. What begins in the same step, of one model and phase, is one row.
SELECT
    gpu,
    model,
    phase,
    greatest(min(from_us), $since_us) AS from_us,
    -- Of one that lasts, there is no end yet.
    CASE WHEN count(*) = count(until_us) THEN least(max(until_us), $until_us) END AS until_us,
    -- How long it really was, beyond the range too; as far as that goes, where it lasts.
    coalesce(CASE WHEN count(*) = count(until_us) THEN max(until_us) END, $until_us) - min(from_us) AS lasted_us,
    count(*) AS intervals,
    arg_max(replica, from_us) AS replica,
    arg_max(swap, from_us) AS swap
FROM residency
WHERE from_us < $until_us AND (until_us IS NULL OR until_us >= $since_us) AND ($model = '' OR model = $model)
    -- Too short to be seen.
    AND (phase = 'ready' OR coalesce(until_us, $until_us) - from_us >= $bucket_us // 8)
GROUP BY gpu, model, phase, from_us // $bucket_us
ORDER BY gpu, from_us, model, phase
