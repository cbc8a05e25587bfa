-- What was asked of the router itself: loads, unloads, cancels, drains, GPUs taken out of service.

-- create
CREATE TABLE operations (
    op BIGINT,
    seq BIGINT,
    run INTEGER,
    at_us BIGINT,
    kind VARCHAR,
    model VARCHAR,
    rid BIGINT,
    gpu INTEGER,
    forced BOOLEAN,
    asked_by VARCHAR,
    end_seq BIGINT,
    ended_us BIGINT,
    outcome VARCHAR,
    code VARCHAR,
    reason VARCHAR
);

-- apply events: LoadWished AdminUnload AdminCancel AdminDrain AdminGpu
INSERT INTO operations BY NAME
SELECT
    op,
    seq,
    run,
    at_us,
    CASE type
        WHEN 'LoadWished' THEN 'load'
        WHEN 'AdminUnload' THEN 'unload'
        WHEN 'AdminCancel' THEN 'cancel'
        WHEN 'AdminDrain' THEN 'drain'
        ELSE 'gpu_' || action
    END AS kind,
    model,
    rid,
    gpu,
    coalesce(force, false) AS forced,
    CASE WHEN type = 'LoadWished' THEN coalesce("by", 'admin') ELSE coalesce("by", '') END AS asked_by
FROM batch
WHERE type IN ('LoadWished', 'AdminUnload', 'AdminCancel', 'AdminDrain', 'AdminGpu')
ORDER BY seq;

-- apply events: HistoryReset
INSERT INTO operations BY NAME
SELECT
    seq,
    run,
    at_us,
    'reset_history' AS kind,
    false AS forced,
    coalesce("by", '') AS asked_by,
    seq AS end_seq,
    at_us AS ended_us,
    'done' AS outcome
FROM batch
WHERE type = 'HistoryReset'
ORDER BY seq;

-- apply events: AdminDone
-- Also of one that is taken to be lost: the run after a kill answers what it finds open, in this batch or in the next.
UPDATE operations SET
    end_seq = done.seq,
    ended_us = done.at_us,
    outcome = done.outcome,
    code = done.code,
    reason = done.reason
FROM batch AS done
WHERE done.type = 'AdminDone' AND done.op = operations.op AND coalesce(operations.outcome, 'lost') = 'lost';

-- apply events: RouterStarted
-- A run that crashed left them open.
UPDATE operations SET end_seq = later.seq, ended_us = runs.last_us, outcome = 'lost'
FROM runs, batch AS later
WHERE operations.outcome IS NULL AND runs.run = operations.run AND later.type = 'RouterStarted' AND later.run = (
    SELECT min(run) FROM batch WHERE type = 'RouterStarted' AND run > operations.run
);

-- prune
DELETE FROM operations WHERE end_seq < (SELECT events FROM horizon);
