-- How many requests wait and run, after each change; counted over all models and for the model of the change.
-- Where a request is for no time, it was not: one that is dispatched as it arrives has waited in no queue.

-- create
CREATE TABLE queue_depth (
    seq BIGINT,
    at_us BIGINT,
    run INTEGER,
    rid BIGINT,
    model VARCHAR,
    queued INTEGER,
    in_flight INTEGER,
    model_queued INTEGER,
    model_in_flight INTEGER
);
CREATE TABLE queue_now (
    model VARCHAR,
    queued INTEGER,
    in_flight INTEGER
);

-- apply events: RequestArrived RequestDispatched RequestRequeued RequestFinished RequestCancelled RequestFailed RequestRejected RequestLost
-- Where a request was before is known from `open_requests`, which this batch has not yet changed.
CREATE OR REPLACE TEMP TABLE queue_moves AS
WITH known AS (
    SELECT rid, model, CASE stage WHEN 'queued' THEN 1 ELSE 2 END AS was
    FROM open_requests
    WHERE rid IN (SELECT rid FROM batch)
    UNION ALL
    SELECT rid, model, 0 FROM batch WHERE type = 'RequestArrived'
),
moves AS (
    SELECT
        batch.seq,
        -- A lost request was there until its run ended, not until the next one began.
        CASE WHEN batch.type = 'RequestLost' THEN coalesce(runs.last_us, batch.at_us) ELSE batch.at_us END AS at_us,
        batch.run,
        batch.rid,
        known.model,
        known.was,
        -- 1 queued, 2 running, 3 ended: numbers sort faster than words.
        CASE batch.type
            WHEN 'RequestArrived' THEN 1
            WHEN 'RequestRequeued' THEN 1
            WHEN 'RequestDispatched' THEN 2
            ELSE 3
        END AS stage
    FROM batch
    JOIN known ON known.rid = batch.rid
    LEFT JOIN runs ON runs.run = batch.lost_run
    WHERE batch.type IN (
        'RequestArrived', 'RequestDispatched', 'RequestRequeued', 'RequestFinished', 'RequestCancelled',
        'RequestFailed', 'RequestRejected', 'RequestLost'
    )
),
changes AS (
    SELECT
        *,
        CASE WHEN lag(rid) OVER in_order = rid THEN lag(stage) OVER in_order ELSE was END AS before,
        coalesce(lead(rid) OVER in_order = rid AND lead(at_us) OVER in_order = at_us, false) AS is_passing
    FROM moves
    WINDOW in_order AS (ORDER BY rid, seq)
)
SELECT
    seq,
    at_us,
    run,
    rid,
    model,
    (stage = 1)::BIGINT - (before = 1)::BIGINT AS queued_by,
    (stage = 2)::BIGINT - (before = 2)::BIGINT AS in_flight_by,
    is_passing
FROM changes
WHERE stage <> before;

-- The batch before may have ended in the middle of a moment.
DELETE FROM queue_depth USING queue_moves AS later
WHERE later.rid = queue_depth.rid AND later.at_us = queue_depth.at_us;

-- Running sums cost the most here: each is of two counts in one number, the upper half of which counts what waits.
INSERT INTO queue_depth
SELECT
    seq,
    at_us,
    run,
    rid,
    model,
    counts >> 32,
    counts & 4294967295,
    model_counts >> 32,
    model_counts & 4294967295
FROM (
    SELECT
        moves.*,
        (total.counts + sum(counts_by) OVER (ORDER BY moves.seq))::BIGINT AS counts,
        (coalesce(own.queued * 4294967296 + own.in_flight, 0)
            + sum(counts_by) OVER (PARTITION BY moves.model ORDER BY moves.seq))::BIGINT AS model_counts
    FROM (SELECT *, queued_by * 4294967296 + in_flight_by AS counts_by FROM queue_moves) AS moves
    CROSS JOIN (SELECT coalesce(sum(queued * 4294967296 + in_flight), 0) AS counts FROM queue_now) AS total
    LEFT JOIN queue_now AS own ON own.model = moves.model
)
WHERE NOT is_passing
ORDER BY seq;

MERGE INTO queue_now USING (
    SELECT model, sum(queued_by)::INTEGER AS queued, sum(in_flight_by)::INTEGER AS in_flight FROM queue_moves GROUP BY model
) AS moved ON queue_now.model = moved.model
WHEN MATCHED THEN UPDATE SET
    queued = queue_now.queued + moved.queued,
    in_flight = queue_now.in_flight + moved.in_flight
WHEN NOT MATCHED THEN INSERT BY NAME;

-- seed
INSERT INTO queue_now
SELECT
    each.value ->> 'model',
    count(*) FILTER (each.value ->> 'replica' = ''),
    count(*) FILTER (each.value ->> 'replica' <> '')
FROM checkpoint, json_each(state, '$.requests') AS each
WHERE (each.value ->> 'op')::BIGINT = 0
GROUP BY 1;

-- prune
DELETE FROM queue_depth WHERE seq < (SELECT events FROM horizon);
