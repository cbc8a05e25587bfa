-- Prompt caches of slots that were saved before an eviction, and restored after a load.

-- create
CREATE TABLE cache_moves (
    seq BIGINT,
    at_us BIGINT,
    run INTEGER,
    replica VARCHAR,
    slot INTEGER,
    conversation VARCHAR,
    move VARCHAR,
    ok BOOLEAN,
    tokens BIGINT,
    bytes BIGINT,
    took_us BIGINT,
    reason VARCHAR
);

-- apply events: CacheSaved CacheSaveFailed CacheRestored CacheRestoreFailed
INSERT INTO cache_moves
SELECT
    seq,
    at_us,
    run,
    replica,
    slot,
    conversation,
    CASE WHEN type IN ('CacheSaved', 'CacheSaveFailed') THEN 'save' ELSE 'restore' END,
    type IN ('CacheSaved', 'CacheRestored'),
    tokens,
    bytes,
    took_us,
    reason
FROM batch
WHERE type IN ('CacheSaved', 'CacheSaveFailed', 'CacheRestored', 'CacheRestoreFailed')
ORDER BY seq;

-- prune
DELETE FROM cache_moves WHERE seq < (SELECT events FROM horizon);
