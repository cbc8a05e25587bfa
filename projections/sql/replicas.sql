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
WITH phases AS (
    SELECT replica, 'loading' AS phase, ordered_us AS from_us, coalesce(ready_us, stop_ordered_us, ended_us) AS until_us
    FROM replicas
    UNION ALL
    SELECT replica, 'ready', ready_us, coalesce(stop_ordered_us, ended_us) FROM replicas WHERE ready_us IS NOT NULL
    UNION ALL
    SELECT replica, 'stopping', stop_ordered_us, ended_us FROM replicas WHERE stop_ordered_us IS NOT NULL
)
SELECT unnest(replicas.gpus) AS gpu, replicas.model, replica, phase, from_us, until_us, replicas.run, replicas.swap
FROM phases JOIN replicas USING (replica)
WHERE from_us IS NOT NULL;

-- apply events: ReplicaSpawnOrdered ReplicaSpawned ReplicaReady ReplicaStopOrdered ReplicaStopped ReplicaCrashed ReplicaLoadFailed RouterStarted
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

UPDATE replicas SET
    spawned_us = coalesce(replicas.spawned_us, new.spawned_us),
    pid = coalesce(replicas.pid, new.pid),
    ready_us = coalesce(replicas.ready_us, new.ready_us),
    load_us = coalesce(replicas.load_us, new.load_us),
    slots = coalesce(replicas.slots, new.slots),
    slot_ctx = coalesce(replicas.slot_ctx, new.slot_ctx),
    vram_mib = coalesce(replicas.vram_mib, new.vram_mib),
    build = coalesce(replicas.build, new.build),
    stop_ordered_us = coalesce(replicas.stop_ordered_us, new.stop_ordered_us),
    stop_why = coalesce(replicas.stop_why, new.stop_why),
    stop_forced = coalesce(replicas.stop_forced OR new.stop_forced, replicas.stop_forced, new.stop_forced),
    end_seq = coalesce(replicas.end_seq, new.end_seq),
    ended_us = coalesce(replicas.ended_us, new.ended_us),
    ending = coalesce(replicas.ending, new.ending),
    cause = coalesce(replicas.cause, new.cause),
    reason = coalesce(replicas.reason, new.reason),
    exit_code = coalesce(replicas.exit_code, new.exit_code),
    signal = coalesce(replicas.signal, new.signal),
    escalated = coalesce(replicas.escalated, new.escalated)
FROM (
    SELECT
        replica,
        min(at_us) FILTER (type = 'ReplicaSpawned') AS spawned_us,
        min(pid) FILTER (type = 'ReplicaSpawned') AS pid,
        min(at_us) FILTER (type = 'ReplicaReady') AS ready_us,
        min(load_us) FILTER (type = 'ReplicaReady') AS load_us,
        min(slots) FILTER (type = 'ReplicaReady') AS slots,
        nullif(min(slot_ctx) FILTER (type = 'ReplicaReady'), 0) AS slot_ctx,
        min(list_sum(list_transform(vram::BIGINT[][], lambda pair: pair[2]))) FILTER (type = 'ReplicaReady') AS vram_mib,
        min(build) FILTER (type = 'ReplicaReady') AS build,
        min(at_us) FILTER (type = 'ReplicaStopOrdered') AS stop_ordered_us,
        arg_min(why, seq) FILTER (type = 'ReplicaStopOrdered') AS stop_why,
        bool_or(coalesce(force, false)) FILTER (type = 'ReplicaStopOrdered') AS stop_forced,
        min(seq) FILTER (is_end) AS end_seq,
        min(at_us) FILTER (is_end) AS ended_us,
        min(CASE type WHEN 'ReplicaStopped' THEN 'stopped' WHEN 'ReplicaCrashed' THEN 'crashed' ELSE 'load_failed' END)
            FILTER (is_end) AS ending,
        min(CASE type WHEN 'ReplicaCrashed' THEN coalesce(cause_of_exit, 'exit') WHEN 'ReplicaLoadFailed' THEN kind END)
            FILTER (is_end) AS cause,
        min(reason) FILTER (is_end) AS reason,
        min(exit_code) FILTER (is_end) AS exit_code,
        min(signal) FILTER (is_end) AS signal,
        bool_or(coalesce(escalated, false)) FILTER (type = 'ReplicaStopped') AS escalated
    FROM (SELECT *, type IN ('ReplicaStopped', 'ReplicaCrashed', 'ReplicaLoadFailed') AS is_end FROM batch)
    WHERE is_end OR type IN ('ReplicaSpawned', 'ReplicaReady', 'ReplicaStopOrdered')
    GROUP BY replica
) AS new
WHERE replicas.replica = new.replica;

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
