-- One row per GPU that the router has seen, as it was seen last.

-- create
CREATE TABLE gpus (
    gpu INTEGER,
    uuid VARCHAR,
    name VARCHAR,
    memory_mib BIGINT
);

-- apply events: RouterStarted
CREATE OR REPLACE TEMP TABLE seen_gpus AS
SELECT
    (each.value ->> 'index')::INTEGER AS gpu,
    coalesce(each.value ->> 'uuid', '') AS uuid,
    coalesce(each.value ->> 'name', '') AS name,
    (each.value ->> 'memory_mib')::BIGINT AS memory_mib
FROM batch, json_each(batch.gpus) AS each
WHERE batch.type = 'RouterStarted'
QUALIFY row_number() OVER (PARTITION BY gpu ORDER BY batch.seq DESC) = 1;
DELETE FROM gpus WHERE gpu IN (SELECT gpu FROM seen_gpus);
INSERT INTO gpus SELECT * FROM seen_gpus;

-- seed
-- A checkpoint knows how many there are.
INSERT INTO gpus BY NAME
SELECT unnest(range(coalesce((state ->> '$.settings.gpus')::INTEGER, 1)))::INTEGER AS gpu, '' AS uuid, '' AS name
FROM checkpoint
WHERE (state ->> 'run')::INTEGER > 0;
