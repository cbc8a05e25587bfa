-- How many requests wait and run, after each change; counted over all models and for the model of the change.

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
    SELECT rid, model, stage AS was FROM open_requests WHERE rid IN (SELECT rid FROM batch)
    UNION ALL
    SELECT rid, model, NULL FROM batch WHERE type = 'RequestArrived'
),
moves AS (
    SELECT
        batch.seq,
        batch.at_us,
        batch.run,
        batch.rid,
        known.model,
        known.was,
        CASE
            WHEN batch.type IN ('RequestArrived', 'RequestRequeued') THEN 'queued'
            WHEN batch.type = 'RequestDispatched' THEN 'running'
            ELSE 'ended'
        END AS stage
    FROM batch
    JOIN known ON known.rid = batch.rid
    WHERE batch.type IN (
        'RequestArrived', 'RequestDispatched', 'RequestRequeued', 'RequestFinished', 'RequestCancelled',
        'RequestFailed', 'RequestRejected', 'RequestLost'
    )
),
changes AS (
    SELECT *, coalesce(lag(stage) OVER (PARTITION BY rid ORDER BY seq), was, '') AS before FROM moves
)
SELECT
    seq,
    at_us,
    run,
    rid,
    model,
    (stage = 'queued')::INTEGER - (before = 'queued')::INTEGER AS queued_by,
    (stage = 'running')::INTEGER - (before = 'running')::INTEGER AS in_flight_by
FROM changes
WHERE stage <> before;

INSERT INTO queue_depth
SELECT
    moves.seq,
    moves.at_us,
    moves.run,
    moves.rid,
    moves.model,
    total.queued + sum(queued_by) OVER (ORDER BY moves.seq),
    total.in_flight + sum(in_flight_by) OVER (ORDER BY moves.seq),
    coalesce(own.queued, 0) + sum(queued_by) OVER (PARTITION BY moves.model ORDER BY moves.seq),
    coalesce(own.in_flight, 0) + sum(in_flight_by) OVER (PARTITION BY moves.model ORDER BY moves.seq)
FROM queue_moves AS moves
CROSS JOIN (
    SELECT coalesce(sum(queued), 0) AS queued, coalesce(sum(in_flight), 0) AS in_flight FROM queue_now
) AS total
LEFT JOIN queue_now AS own ON own.model = moves.model
ORDER BY moves.seq;

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
