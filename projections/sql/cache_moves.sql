-- Prompt caches of slots that were saved before an eviction and restored after a load, and what became of the files.

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

-- apply events: CacheSaved CacheSaveFailed CacheRestored CacheRestoreFailed CacheFound CacheDropped
INSERT INTO cache_moves
SELECT
    seq,
    at_us,
    run,
    replica,
    slot,
    conversation,
    CASE type
        WHEN 'CacheFound' THEN 'find'
        WHEN 'CacheDropped' THEN 'drop'
        ELSE CASE WHEN type IN ('CacheSaved', 'CacheSaveFailed') THEN 'save' ELSE 'restore' END
    END,
    type NOT IN ('CacheSaveFailed', 'CacheRestoreFailed'),
    tokens,
    bytes,
    took_us,
    coalesce(reason, why)
FROM batch
WHERE type IN ('CacheSaved', 'CacheSaveFailed', 'CacheRestored', 'CacheRestoreFailed', 'CacheFound', 'CacheDropped')
ORDER BY seq;

-- prune
DELETE FROM cache_moves WHERE seq < (SELECT events FROM horizon);
