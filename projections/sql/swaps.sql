-- One row per swap: a load with the evictions that make room for it, or an unload.

-- create
CREATE TABLE swaps (
    swap BIGINT,
    seq BIGINT,
    run INTEGER,
    begun_us BIGINT,
    target VARCHAR,
    cause_rid BIGINT,
    why VARCHAR,
    footprint INTEGER[],
    indexes INTEGER[],
    waited_us BIGINT,
    head_since_us BIGINT,
    engine VARCHAR,
    set_name VARCHAR,
    cost BIGINT,
    nodes BIGINT,
    search_limited BOOLEAN,
    op BIGINT,
    end_seq BIGINT,
    ended_us BIGINT,
    outcome VARCHAR,
    abort_why VARCHAR,
    drain_us BIGINT,
    stop_us BIGINT,
    load_us BIGINT,
    took_us BIGINT,
    ready INTEGER,
    save_us BIGINT
);

-- apply events: SwapBegun
INSERT INTO swaps BY NAME
SELECT
    swap,
    seq,
    run,
    at_us AS begun_us,
    coalesce(target, '') AS target,
    cause_rid,
    why,
    coalesce(footprint, []) AS footprint,
    coalesce(replicas, []) AS indexes,
    coalesce(waited_us, 0) AS waited_us,
    nullif(head_since_us, 0) AS head_since_us,
    coalesce(engine, 'residency') AS engine,
    set_name,
    CASE WHEN engine IN ('matrix', 'capacity') THEN coalesce(cost, 0) END AS cost,
    CASE WHEN engine = 'capacity' THEN coalesce(nodes, 0) END AS nodes,
    CASE WHEN engine = 'capacity' THEN coalesce(search_limited, false) END AS search_limited,
    op
FROM batch
WHERE type = 'SwapBegun'
ORDER BY seq;

-- apply events: SwapFinished SwapAborted
UPDATE swaps SET
    end_seq = done.seq,
    ended_us = done.at_us,
    outcome = CASE WHEN done.type = 'SwapAborted' THEN 'aborted' WHEN coalesce(done.ok, true) THEN 'ok' ELSE 'failed' END,
    abort_why = CASE WHEN done.type = 'SwapAborted' THEN coalesce(done.why, 'unwanted') END,
    drain_us = CASE WHEN done.type = 'SwapFinished' THEN coalesce(done.drain_us, 0) END,
    stop_us = CASE WHEN done.type = 'SwapFinished' THEN coalesce(done.stop_us, 0) END,
    load_us = CASE WHEN done.type = 'SwapFinished' THEN coalesce(done.load_us, 0) END,
    took_us = done.at_us - swaps.begun_us,
    ready = coalesce(done.ready, 0),
    save_us = CASE WHEN done.type = 'SwapFinished' THEN coalesce(done.save_us, 0) END
FROM batch AS done
WHERE done.swap = swaps.swap AND done.type IN ('SwapFinished', 'SwapAborted');

-- apply events: RouterStarted
-- A run that crashed left its swaps open.
UPDATE swaps SET
    end_seq = later.seq,
    ended_us = runs.last_us,
    outcome = 'lost',
    took_us = runs.last_us - swaps.begun_us
FROM runs, batch AS later
WHERE swaps.outcome IS NULL AND runs.run = swaps.run AND later.type = 'RouterStarted' AND later.run = (
    SELECT min(run) FROM batch WHERE type = 'RouterStarted' AND run > swaps.run
);

-- seed
INSERT INTO swaps BY NAME
SELECT
    (each.value ->> 'id')::BIGINT AS swap,
    (state ->> 'run')::INTEGER AS run,
    (each.value ->> 'begun_us')::BIGINT AS begun_us,
    each.value ->> 'target' AS target,
    nullif((each.value ->> 'cause_rid')::BIGINT, 0) AS cause_rid,
    each.value ->> 'why' AS why
FROM checkpoint, json_each(state, '$.swaps') AS each;

-- prune
DELETE FROM swaps WHERE end_seq < (SELECT events FROM horizon);
