-- Every decision with its reason as data; a column is NULL where that type of decision does not have it.

-- create
CREATE TABLE decisions (
    seq BIGINT,
    at_us BIGINT,
    run INTEGER,
    cause BIGINT,
    type VARCHAR,
    rid BIGINT,
    swap BIGINT,
    op BIGINT,
    model VARCHAR,
    replica VARCHAR,
    why VARCHAR,
    attempt INTEGER,
    waited_us BIGINT,
    head_since_us BIGINT,
    hard BOOLEAN,
    victims JSON,
    others JSON,
    footprint INTEGER[],
    blocked_by VARCHAR[],
    in_flight INTEGER,
    weight INTEGER,
    overtook INTEGER,
    overtook_first BIGINT[],
    status INTEGER,
    code VARCHAR,
    reason VARCHAR,
    until_us BIGINT,
    due_us BIGINT,
    timer VARCHAR
);

-- apply events: RequestHeld RequestDispatched RequestRequeued RequestFailed RequestRejected SwapBegun SwapAborted SwapFinished ReplicaStopOrdered ReplicaSpawnOrdered CacheSaveOrdered CacheRestoreOrdered CacheGivenUp ModelCooledDown AdminDone TimerSet TimerCancelled
INSERT INTO decisions
SELECT
    seq,
    at_us,
    run,
    cause,
    type,
    rid,
    nullif(swap, 0),
    nullif(op, 0),
    nullif(coalesce(model, target), ''),
    replica,
    CASE type
        WHEN 'RequestDispatched' THEN coalesce(rule, 'least_busy')
        WHEN 'RequestRequeued' THEN coalesce(why, 'upstream_lost')
        WHEN 'SwapAborted' THEN coalesce(why, 'unwanted')
        WHEN 'SwapFinished' THEN CASE WHEN coalesce(ok, true) THEN 'ok' ELSE 'failed' END
        WHEN 'AdminDone' THEN outcome
        ELSE why
    END,
    CASE WHEN type IN ('RequestDispatched', 'ReplicaSpawnOrdered') THEN coalesce(attempt, 1) ELSE attempt END,
    CASE WHEN type IN ('RequestDispatched', 'SwapBegun') THEN coalesce(waited_us, 0) END,
    nullif(head_since_us, 0),
    CASE WHEN type = 'RequestHeld' THEN coalesce(hard, false) END,
    victims,
    others,
    footprint,
    blocked_by,
    CASE WHEN type = 'RequestDispatched' THEN coalesce(in_flight, 0) END,
    CASE WHEN type = 'RequestDispatched' THEN coalesce(weight, 1) END,
    CASE WHEN type = 'RequestDispatched' THEN coalesce(overtook, 0) END,
    overtook_first,
    status,
    code,
    reason,
    until_us,
    due_us,
    CASE WHEN type IN ('TimerSet', 'TimerCancelled') THEN kind || ':' || key END
FROM batch
WHERE type IN (
    'RequestHeld', 'RequestDispatched', 'RequestRequeued', 'RequestFailed', 'RequestRejected', 'SwapBegun', 'SwapAborted',
    'SwapFinished', 'ReplicaStopOrdered', 'ReplicaSpawnOrdered', 'CacheSaveOrdered', 'CacheRestoreOrdered',
    'CacheGivenUp', 'ModelCooledDown', 'AdminDone', 'TimerSet', 'TimerCancelled'
)
ORDER BY seq;

-- prune
DELETE FROM decisions WHERE seq < (SELECT events FROM horizon);
