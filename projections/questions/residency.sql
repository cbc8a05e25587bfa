-- Which replica was on which GPU, loading, ready or stopping, within a time range.
SELECT gpu, model, replica, phase, from_us, until_us, swap
FROM residency
WHERE from_us < $until_us AND (until_us IS NULL OR until_us >= $since_us) AND ($model = '' OR model = $model)
ORDER BY gpu, from_us, replica
