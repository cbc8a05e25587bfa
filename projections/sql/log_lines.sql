-- The router's own diary, what it noted about its replicas, and lines of theirs that went into the log.

-- create
CREATE TABLE log_lines (
    seq BIGINT,
    at_us BIGINT,
    run INTEGER,
    level VARCHAR,
    replica VARCHAR,
    code VARCHAR,
    text VARCHAR
);

-- apply observations: LogLine ReplicaNote
INSERT INTO log_lines
SELECT
    seq,
    at_us,
    run,
    CASE WHEN type = 'LogLine' THEN level ELSE 'note' END,
    coalesce(replica, ''),
    coalesce(code, ''),
    coalesce(text, '')
FROM batch
WHERE type IN ('LogLine', 'ReplicaNote')
ORDER BY seq;

-- prune
DELETE FROM log_lines WHERE seq < (SELECT observations FROM horizon);
