-- Work that nobody had anything of: tokens for clients that had left, answers that broke off, time spent swapping.
WITH requests_of AS (
    SELECT
        model,
        count(*) FILTER (outcome = 'cancelled') AS cancelled,
        coalesce(sum(frames) FILTER (outcome = 'cancelled'), 0)::BIGINT AS frames_of_cancelled,
        coalesce(sum(unread_frames), 0)::BIGINT AS unread_frames,
        count(*) FILTER (outcome = 'failed' AND begun) AS broken_off,
        coalesce(sum(attempts - 1) FILTER (attempts > 1), 0)::BIGINT AS attempts_lost
    FROM requests
    WHERE arrived_us >= $since_us AND arrived_us < $until_us AND ($model = '' OR model = $model)
    GROUP BY model
),
swaps_of AS (
    SELECT
        target AS model,
        count(*) AS swaps,
        count(*) FILTER (outcome = 'aborted') AS swaps_aborted,
        count(*) FILTER (outcome = 'failed') AS swaps_failed,
        coalesce(sum(took_us), 0)::BIGINT AS swapping_us
    FROM swaps
    WHERE begun_us >= $since_us AND begun_us < $until_us AND target <> '' AND ($model = '' OR target = $model)
    GROUP BY target
)
SELECT
    model,
    coalesce(cancelled, 0) AS cancelled,
    coalesce(frames_of_cancelled, 0) AS frames_of_cancelled,
    coalesce(unread_frames, 0) AS unread_frames,
    coalesce(broken_off, 0) AS broken_off,
    coalesce(attempts_lost, 0) AS attempts_lost,
    coalesce(swaps, 0) AS swaps,
    coalesce(swaps_aborted, 0) AS swaps_aborted,
    coalesce(swaps_failed, 0) AS swaps_failed,
    coalesce(swapping_us, 0) AS swapping_us
FROM requests_of FULL JOIN swaps_of USING (model)
ORDER BY model
