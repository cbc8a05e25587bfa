-- One row per start of the router.

-- create
CREATE TABLE runs (
    run INTEGER,
    seq BIGINT,
    started_us BIGINT,
    last_us BIGINT,
    stopping_us BIGINT,
    stopped_us BIGINT,
    stop_reason VARCHAR,
    version VARCHAR,
    policy_version INTEGER,
    llama_server VARCHAR,
    llama_build VARCHAR
);

-- apply events: RouterStarted
INSERT INTO runs BY NAME
SELECT
    run,
    seq,
    at_us AS started_us,
    at_us AS last_us,
    version,
    policy_version,
    llama_server,
    llama_build
FROM batch
WHERE type = 'RouterStarted'
ORDER BY seq;

-- apply events: *
UPDATE runs SET last_us = greatest(runs.last_us, seen.last_us)
FROM (SELECT run, max(at_us) AS last_us FROM batch GROUP BY run) AS seen
WHERE seen.run = runs.run;

-- apply events: RouterStopping
UPDATE runs SET stopping_us = batch.at_us, stop_reason = coalesce(batch.reason, '')
FROM batch
WHERE batch.type = 'RouterStopping' AND batch.run = runs.run;

-- apply events: RouterStopped
UPDATE runs SET stopped_us = batch.at_us, stop_reason = coalesce(runs.stop_reason, batch.reason, '')
FROM batch
WHERE batch.type = 'RouterStopped' AND batch.run = runs.run;

-- seed
INSERT INTO runs BY NAME
SELECT (state ->> 'run')::INTEGER AS run, (state ->> 'now_us')::BIGINT AS last_us FROM checkpoint;

-- prune
DELETE FROM runs WHERE run < (SELECT max(run) FROM runs WHERE seq <= (SELECT events FROM horizon));
