-- One row per llama-server process that was ordered: its life from the order to the end.

-- create
CREATE TABLE replicas (
    replica VARCHAR,
    seq BIGINT,
    run INTEGER,
    model VARCHAR,
    index INTEGER,
    gpus INTEGER[],
    swap BIGINT,
    attempt INTEGER,
    after VARCHAR,
    ordered_us BIGINT,
    spawned_us BIGINT,
    pid INTEGER,
    ready_us BIGINT,
    load_us BIGINT,
    slots INTEGER,
    slot_ctx INTEGER,
    vram_mib BIGINT,
    build VARCHAR,
    stop_ordered_us BIGINT,
    stop_why VARCHAR,
    stop_forced BOOLEAN,
    end_seq BIGINT,
    ended_us BIGINT,
    ending VARCHAR,
    cause VARCHAR,
    reason VARCHAR,
    exit_code INTEGER,
    signal INTEGER,
    escalated BOOLEAN
);

-- Who is on which GPU, from when to when; a row per replica, GPU and phase. `until_us` is NULL while it lasts.
CREATE VIEW residency AS
SELECT unnest(gpus) AS gpu, model, replica, phase, from_us, until_us, run, swap
FROM (
    SELECT *, 'loading' AS phase, ordered_us AS from_us, least(ready_us, stop_ordered_us, ended_us) AS until_us
    FROM replicas
    UNION ALL
    SELECT *, 'ready', ready_us, coalesce(stop_ordered_us, ended_us) FROM replicas
    UNION ALL
    SELECT *, 'stopping', stop_ordered_us, ended_us FROM replicas
)
-- One that became ready just after it was told to stop was never there to be used.
WHERE from_us IS NOT NULL AND (until_us IS NULL OR from_us <= until_us);

-- apply events: ReplicaSpawnOrdered
INSERT INTO replicas BY NAME
SELECT
    replica,
    seq,
    run,
    model,
    coalesce(index, 0) AS index,
    coalesce(gpus::INTEGER[], []) AS gpus,
    nullif(swap, 0) AS swap,
    coalesce(attempt, 1) AS attempt,
    coalesce(after, '') AS after,
    at_us AS ordered_us
FROM batch
WHERE type = 'ReplicaSpawnOrdered'
ORDER BY seq;

-- apply events: ReplicaSpawned
UPDATE replicas SET spawned_us = new.at_us, pid = new.pid
FROM batch AS new
WHERE new.type = 'ReplicaSpawned' AND new.replica = replicas.replica;

-- apply events: ReplicaReady
UPDATE replicas SET
    ready_us = new.at_us,
    load_us = coalesce(new.load_us, 0),
    slots = new.slots,
    slot_ctx = nullif(new.slot_ctx, 0),
    vram_mib = list_sum(list_transform(new.vram::BIGINT[][], lambda pair: pair[2])),
    build = coalesce(new.build, '')
FROM batch AS new
WHERE new.type = 'ReplicaReady' AND new.replica = replicas.replica;

-- apply events: ReplicaStopOrdered
-- A second order is the same with force.
UPDATE replicas SET
    stop_ordered_us = coalesce(replicas.stop_ordered_us, new.at_us),
    stop_why = coalesce(replicas.stop_why, new.why),
    stop_forced = coalesce(replicas.stop_forced, false) OR new.forced
FROM (
    SELECT replica, min(at_us) AS at_us, arg_min(why, seq) AS why, bool_or(coalesce(force, false)) AS forced
    FROM batch
    WHERE type = 'ReplicaStopOrdered'
    GROUP BY replica
) AS new
WHERE new.replica = replicas.replica;

-- apply events: ReplicaStopped ReplicaCrashed ReplicaLoadFailed
UPDATE replicas SET
    end_seq = new.seq,
    ended_us = new.at_us,
    ending = CASE new.type WHEN 'ReplicaStopped' THEN 'stopped' WHEN 'ReplicaCrashed' THEN 'crashed' ELSE 'load_failed' END,
    cause = CASE new.type WHEN 'ReplicaCrashed' THEN coalesce(new.cause_of_exit, 'exit') ELSE new.kind END,
    reason = new.reason,
    exit_code = new.exit_code,
    signal = new.signal,
    escalated = CASE new.type WHEN 'ReplicaStopped' THEN coalesce(new.escalated, false) END
FROM batch AS new
WHERE new.type IN ('ReplicaStopped', 'ReplicaCrashed', 'ReplicaLoadFailed') AND new.replica = replicas.replica;

-- apply events: RouterStarted
-- A run that crashed left its processes open; the next one ended them.
UPDATE replicas SET end_seq = later.seq, ended_us = runs.last_us, ending = 'lost'
FROM runs, batch AS later
WHERE replicas.ended_us IS NULL AND runs.run = replicas.run AND later.type = 'RouterStarted' AND later.run = (
    SELECT min(run) FROM batch WHERE type = 'RouterStarted' AND run > replicas.run
);

-- seed
INSERT INTO replicas BY NAME
SELECT
    each.value ->> 'id' AS replica,
    (state ->> 'run')::INTEGER AS run,
    each.value ->> 'model' AS model,
    (each.value ->> 'index')::INTEGER AS index,
    list_filter(range(64), lambda gpu: (((each.value ->> 'mask')::BIGINT >> gpu) & 1) = 1)::INTEGER[] AS gpus,
    -- The checkpoint does not say when it was ordered; its model's load is the nearest that it knows.
    nullif(coalesce((model.value ->> 'loaded_us')::BIGINT, 0), 0) AS ordered_us,
    CASE WHEN each.value ->> 'phase' <> 'loading' THEN nullif((model.value ->> 'loaded_us')::BIGINT, 0) END AS ready_us,
    nullif((each.value ->> 'pid')::INTEGER, 0) AS pid,
    nullif((each.value ->> 'slots')::INTEGER, 0) AS slots
FROM checkpoint
CROSS JOIN json_each(state, '$.replicas') AS each
LEFT JOIN (SELECT each.key, each.value FROM checkpoint, json_each(state, '$.models') AS each) AS model
    ON model.key = each.value ->> 'model';

-- prune
DELETE FROM replicas WHERE end_seq < (SELECT events FROM horizon);
