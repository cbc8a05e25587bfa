-- How each model was configured, from each start or reload on.

-- create
CREATE TABLE model_configs (
    seq BIGINT,
    at_us BIGINT,
    run INTEGER,
    model VARCHAR,
    gpus INTEGER[],
    replicas INTEGER,
    priority INTEGER,
    ttl_us BIGINT,
    persistent BOOLEAN,
    input_price DOUBLE,
    cached_input_price DOUBLE,
    output_price DOUBLE
);

-- apply events: RouterStarted ConfigLoaded
INSERT INTO model_configs
WITH prices AS (
    SELECT batch.seq, each.key AS model, each.value -> 'cost' AS cost
    FROM batch, json_each(batch.effective, '$.models') AS each
    WHERE batch.type IN ('RouterStarted', 'ConfigLoaded')
)
SELECT
    batch.seq,
    batch.at_us,
    batch.run,
    each.key AS model,
    coalesce((each.value -> 'gpus')::INTEGER[], [0]),
    coalesce((each.value ->> 'replicas')::INTEGER, 1),
    coalesce((each.value ->> 'priority')::INTEGER, 0),
    coalesce((each.value ->> 'ttl_us')::BIGINT, 0),
    coalesce((each.value ->> 'persistent')::BOOLEAN, false),
    (prices.cost ->> 'input')::DOUBLE,
    (prices.cost ->> 'cached_input')::DOUBLE,
    (prices.cost ->> 'output')::DOUBLE
FROM batch
CROSS JOIN json_each(batch.config, '$.models') AS each
LEFT JOIN prices ON prices.seq = batch.seq AND prices.model = each.key
WHERE batch.type IN ('RouterStarted', 'ConfigLoaded')
ORDER BY batch.seq, each.key;

-- seed
-- A checkpoint has no prices.
INSERT INTO model_configs BY NAME
SELECT
    checkpoint.seq,
    (state ->> 'now_us')::BIGINT AS at_us,
    (state ->> 'run')::INTEGER AS run,
    each.key AS model,
    coalesce((each.value -> 'gpus')::INTEGER[], [0]) AS gpus,
    coalesce((each.value ->> 'replicas')::INTEGER, 1) AS replicas,
    coalesce((each.value ->> 'priority')::INTEGER, 0) AS priority,
    coalesce((each.value ->> 'ttl_us')::BIGINT, 0) AS ttl_us,
    coalesce((each.value ->> 'persistent')::BOOLEAN, false) AS persistent
FROM checkpoint, json_each(state, '$.settings.models') AS each
WHERE (state ->> 'run')::INTEGER > 0
ORDER BY each.key;

-- prune
DELETE FROM model_configs AS old
WHERE EXISTS (
    FROM model_configs AS later
    WHERE later.model = old.model AND later.seq > old.seq AND later.seq <= (SELECT events FROM horizon)
);
