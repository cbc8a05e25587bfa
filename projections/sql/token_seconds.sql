-- The data frames of a stream, about a second per row, with every gap between them. A frame is usually one token.

-- create
CREATE TABLE token_seconds (
    seq BIGINT,
    at_us BIGINT,
    run INTEGER,
    rid BIGINT,
    frames INTEGER,
    first_frame_us BIGINT,
    gaps_us UINTEGER[],
    gaps_sum_us BIGINT,
    gap_max_us BIGINT,
    stalls INTEGER
);

-- Per request that streamed: how its tokens came. Gaps start at the first frame; a stall is a gap of a second or more.
CREATE VIEW token_timings AS
SELECT
    rid,
    min(run) AS run,
    sum(frames)::BIGINT AS frames,
    min(first_frame_us) AS first_frame_us,
    sum(gaps_sum_us)::BIGINT AS streamed_us,
    sum(len(gaps_us)) / nullif(sum(gaps_sum_us), 0) * 1e6 AS frames_per_s,
    list_aggregate(flatten(list(gaps_us)), 'quantile_disc', 0.5)::BIGINT AS gap_p50_us,
    list_aggregate(flatten(list(gaps_us)), 'quantile_disc', 0.95)::BIGINT AS gap_p95_us,
    max(gap_max_us) AS gap_max_us,
    sum(stalls)::BIGINT AS stalls
FROM token_seconds
GROUP BY rid;

-- apply observations: TokensStreamed
INSERT INTO token_seconds
WITH streamed AS (
    SELECT
        batch.seq,
        batch.at_us,
        batch.run,
        batch.rid,
        batch.gaps_us AS all_us,
        row_number() OVER (PARTITION BY batch.rid ORDER BY batch.seq) = 1 AND earlier.rid IS NULL AS is_first
    FROM batch
    LEFT JOIN (
        SELECT DISTINCT rid
        FROM token_seconds
        WHERE rid BETWEEN (SELECT min(rid) FROM batch WHERE type = 'TokensStreamed')
            AND (SELECT max(rid) FROM batch WHERE type = 'TokensStreamed')
    ) AS earlier ON earlier.rid = batch.rid
    WHERE batch.type = 'TokensStreamed' AND len(batch.gaps_us) > 0
),
-- The first gap of a request counts from its dispatch: it is the time to the first frame, and no gap.
parted AS (
    SELECT *, CASE WHEN is_first THEN all_us[1] END AS first_frame_us, CASE WHEN is_first THEN all_us[2:] ELSE all_us END AS gaps_us
    FROM streamed
)
SELECT
    seq,
    at_us,
    run,
    rid,
    len(all_us),
    first_frame_us,
    gaps_us,
    coalesce(list_sum(gaps_us), 0),
    list_max(gaps_us),
    len(list_filter(gaps_us, lambda gap: gap >= 1_000_000))
FROM parted
ORDER BY seq;

-- prune
DELETE FROM token_seconds WHERE seq < (SELECT observations FROM horizon);
