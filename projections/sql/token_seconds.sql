-- The data frames of a stream, about a second per row, with every gap between them. A frame is usually one token.

-- create
CREATE TABLE token_seconds (
    seq BIGINT,
    at_us BIGINT,
    run INTEGER,
    rid BIGINT,
    frames INTEGER,
    first_frame_us BIGINT,
    gaps_us BIGINT[],
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
-- The first gap of a request counts from its dispatch: it is the time to the first frame, and no gap. Which line is the
-- first of its request is found from numbers alone, so that no list of gaps is sorted or copied for it.
INSERT INTO token_seconds
WITH parted AS (
    SELECT
        batch.seq,
        batch.at_us,
        batch.run,
        batch.rid,
        len(batch.gaps_us) AS frames,
        CASE WHEN first.seq IS NOT NULL THEN batch.gaps_us[1] END AS first_frame_us,
        CASE WHEN first.seq IS NOT NULL THEN batch.gaps_us[2:] ELSE batch.gaps_us END AS gaps_us
    FROM batch
    LEFT JOIN (
        SELECT min(batch.seq) AS seq
        FROM batch
        ANTI JOIN (
            SELECT rid FROM token_seconds WHERE rid BETWEEN (SELECT min(rid) FROM batch) AND (SELECT max(rid) FROM batch)
        ) AS earlier ON earlier.rid = batch.rid
        WHERE len(batch.gaps_us) > 0
        GROUP BY batch.rid
    ) AS first ON first.seq = batch.seq
    WHERE len(batch.gaps_us) > 0
)
SELECT
    seq,
    at_us,
    run,
    rid,
    frames,
    first_frame_us,
    gaps_us,
    coalesce(list_sum(gaps_us), 0),
    list_max(gaps_us),
    CASE WHEN list_max(gaps_us) >= 1_000_000 THEN len(list_filter(gaps_us, lambda gap: gap >= 1_000_000)) ELSE 0 END
FROM parted;

-- prune
DELETE FROM token_seconds WHERE seq < (SELECT observations FROM horizon);
