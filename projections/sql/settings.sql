-- What the scheduler went by, from each start or reload on; models have their own table.

-- create
CREATE TABLE settings (
    seq BIGINT,
    at_us BIGINT,
    run INTEGER,
    head_grace_us BIGINT,
    head_grace_from VARCHAR,
    head_release VARCHAR,
    force_load_us BIGINT,
    max_models_per_gpu INTEGER,
    eviction VARCHAR,
    engine VARCHAR
);

-- apply events: RouterStarted ConfigLoaded
INSERT INTO settings
SELECT
    seq,
    at_us,
    run,
    coalesce((config ->> 'head_grace_us')::BIGINT, 0),
    coalesce(config ->> 'head_grace_from', 'head'),
    coalesce(config ->> 'head_release', 'grace'),
    coalesce((config ->> 'force_load_us')::BIGINT, 300000000),
    coalesce((config ->> 'max_models_per_gpu')::INTEGER, 1),
    coalesce(config ->> 'eviction', 'lru'),
    coalesce(config ->> 'engine', 'residency')
FROM batch
WHERE type IN ('RouterStarted', 'ConfigLoaded')
ORDER BY seq;

-- seed
INSERT INTO settings
SELECT
    seq,
    (state ->> 'now_us')::BIGINT,
    (state ->> 'run')::INTEGER,
    coalesce((state ->> '$.settings.head_grace_us')::BIGINT, 0),
    coalesce(state ->> '$.settings.head_grace_from', 'head'),
    coalesce(state ->> '$.settings.head_release', 'grace'),
    coalesce((state ->> '$.settings.force_load_us')::BIGINT, 300000000),
    coalesce((state ->> '$.settings.max_models_per_gpu')::INTEGER, 1),
    coalesce(state ->> '$.settings.eviction', 'lru'),
    coalesce(state ->> '$.settings.engine', 'residency')
FROM checkpoint
WHERE (state ->> 'run')::INTEGER > 0;

-- prune
DELETE FROM settings AS old
WHERE EXISTS (
    FROM settings AS later
    WHERE later.seq > old.seq AND later.seq <= (SELECT events FROM horizon)
);
