-- The models that could have left for a swap, in the order of choice: those that were chosen, then the others.

-- create
CREATE TABLE swap_candidates (
    swap BIGINT,
    seq BIGINT,
    place INTEGER,
    chosen BOOLEAN,
    model VARCHAR,
    wanted INTEGER,
    in_flight INTEGER,
    age_us BIGINT,
    worth BIGINT,
    gpus INTEGER[]
);

-- apply events: SwapBegun
INSERT INTO swap_candidates
SELECT
    batch.swap,
    batch.seq,
    row_number() OVER (PARTITION BY batch.swap ORDER BY chosen DESC, each.key::INTEGER),
    chosen,
    each.value ->> 'model',
    coalesce((each.value ->> 'wanted')::INTEGER, 0),
    coalesce((each.value ->> 'in_flight')::INTEGER, 0),
    coalesce((each.value ->> 'age_us')::BIGINT, 0),
    (each.value ->> 'worth')::BIGINT,
    coalesce((each.value -> 'gpus')::INTEGER[], [])
FROM batch
CROSS JOIN (VALUES (true), (false)) AS lists(chosen)
CROSS JOIN json_each(CASE WHEN chosen THEN batch.victims ELSE batch.others END) AS each
WHERE batch.type = 'SwapBegun'
ORDER BY batch.seq, 3;

-- prune
DELETE FROM swap_candidates WHERE seq < (SELECT events FROM horizon);
