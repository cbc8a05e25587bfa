-- Ends that nobody ordered: crashes, loads that failed, and replicas found silent. With the last lines of the process.

-- create
CREATE TABLE crashes (
    seq BIGINT,
    at_us BIGINT,
    run INTEGER,
    replica VARCHAR,
    model VARCHAR,
    kind VARCHAR,
    cause VARCHAR,
    reason VARCHAR,
    exit_code INTEGER,
    signal INTEGER,
    lived_us BIGINT,
    silent_us BIGINT,
    norm_us BIGINT,
    rids BIGINT[],
    last_lines VARCHAR[]
);

-- apply events: ReplicaCrashed ReplicaLoadFailed ReplicaStalled
INSERT INTO crashes BY NAME
SELECT
    batch.seq,
    batch.at_us,
    batch.run,
    batch.replica,
    replicas.model,
    CASE batch.type WHEN 'ReplicaCrashed' THEN 'crash' WHEN 'ReplicaLoadFailed' THEN 'load_failed' ELSE 'stall' END AS kind,
    CASE batch.type WHEN 'ReplicaCrashed' THEN coalesce(batch.cause_of_exit, 'exit') WHEN 'ReplicaLoadFailed' THEN batch.kind END AS cause,
    coalesce(batch.reason, '') AS reason,
    batch.exit_code,
    batch.signal,
    coalesce(batch.uptime_us, batch.took_us) AS lived_us,
    batch.silent_us,
    batch.norm_us,
    coalesce(batch.rids, []) AS rids,
    coalesce(batch.last_lines, []) AS last_lines
FROM batch
LEFT JOIN replicas ON replicas.replica = batch.replica
WHERE batch.type IN ('ReplicaCrashed', 'ReplicaLoadFailed', 'ReplicaStalled')
ORDER BY batch.seq;

-- prune
DELETE FROM crashes WHERE seq < (SELECT events FROM horizon);
