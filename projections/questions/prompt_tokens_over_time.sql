-- Prompt tokens over time: those that a cache had, and those that were computed.
SELECT
    ended_us // $bucket_us * $bucket_us AS at_us,
    coalesce(sum(cached_tokens), 0)::BIGINT AS cached_tokens,
    coalesce(sum(uncached_tokens), 0)::BIGINT AS uncached_tokens,
    sum(cached_tokens) / nullif(sum(cached_tokens) + sum(uncached_tokens), 0) AS cached_share
FROM ended_requests
WHERE ended_us >= $since_us AND ended_us < $until_us AND ($model = '' OR model = $model)
GROUP BY 1
ORDER BY 1
