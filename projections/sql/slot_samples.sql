-- What the slots of each replica do, as it tells when it is asked.

-- create
CREATE TABLE slot_samples (
    seq BIGINT,
    at_us BIGINT,
    run INTEGER,
    replica VARCHAR,
    busy INTEGER,
    slots INTEGER,
    context_used BIGINT[]
);

-- apply observations: SlotsSampled
INSERT INTO slot_samples
SELECT seq, at_us, run, replica, busy, slots, coalesce(context_used, [])
FROM batch
WHERE type = 'SlotsSampled'
ORDER BY seq;

-- prune
DELETE FROM slot_samples WHERE seq < (SELECT observations FROM horizon);
