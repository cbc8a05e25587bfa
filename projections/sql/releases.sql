-- After a cancel: when the replica really let go of the request.

-- create
CREATE TABLE releases (
    seq BIGINT,
    at_us BIGINT,
    run INTEGER,
    rid BIGINT,
    replica VARCHAR,
    took_us BIGINT
);

-- apply events: SlotReleased
INSERT INTO releases
SELECT seq, at_us, run, rid, replica, coalesce(took_us, 0) FROM batch WHERE type = 'SlotReleased' ORDER BY seq;

-- prune
DELETE FROM releases WHERE seq < (SELECT events FROM horizon);
