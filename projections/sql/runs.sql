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

-- apply events: *
MERGE INTO runs USING (
    SELECT
        run,
        min(seq) FILTER (type = 'RouterStarted') AS seq,
        min(at_us) FILTER (type = 'RouterStarted') AS started_us,
        max(at_us) AS last_us,
        min(at_us) FILTER (type = 'RouterStopping') AS stopping_us,
        min(at_us) FILTER (type = 'RouterStopped') AS stopped_us,
        arg_min(reason, seq) FILTER (type IN ('RouterStopping', 'RouterStopped')) AS stop_reason,
        arg_min(version, seq) FILTER (type = 'RouterStarted') AS version,
        arg_min(policy_version, seq) FILTER (type = 'RouterStarted') AS policy_version,
        arg_min(llama_server, seq) FILTER (type = 'RouterStarted') AS llama_server,
        arg_min(llama_build, seq) FILTER (type = 'RouterStarted') AS llama_build
    FROM batch
    WHERE run IS NOT NULL
    GROUP BY run
) AS new ON runs.run = new.run
WHEN MATCHED THEN UPDATE SET
    last_us = greatest(runs.last_us, new.last_us),
    stopping_us = coalesce(runs.stopping_us, new.stopping_us),
    stopped_us = coalesce(runs.stopped_us, new.stopped_us),
    stop_reason = coalesce(runs.stop_reason, new.stop_reason)
WHEN NOT MATCHED THEN INSERT BY NAME;

-- prune
DELETE FROM runs WHERE run < (SELECT max(run) FROM runs WHERE seq <= (SELECT events FROM horizon));
