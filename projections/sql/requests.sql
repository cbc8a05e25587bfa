-- One row per request of a client: how it came, what it waited for, what it got, how it ended.

-- create
-- An end is written once and never touched again: what a live batch costs does not grow with the history.
CREATE TABLE ended_requests (
    rid BIGINT,
    seq BIGINT,
    run INTEGER,
    arrived_us BIGINT,
    model VARCHAR,
    asked VARCHAR,
    via VARCHAR,
    route VARCHAR,
    work VARCHAR,
    stream BOOLEAN,
    detached BOOLEAN,
    priority INTEGER,
    key VARCHAR,
    client VARCHAR,
    conversation VARCHAR,
    session VARCHAR,
    after_rid BIGINT,
    slots_wanted BIGINT,
    body_bytes BIGINT,
    prompt_bytes BIGINT,
    estimated_tokens BIGINT,
    max_tokens BIGINT,
    messages INTEGER,
    tools INTEGER,
    rewrote VARCHAR[],
    stage VARCHAR,
    attempts INTEGER,
    dispatched_us BIGINT,
    replica VARCHAR,
    rule VARCHAR,
    overtook INTEGER,
    wait_us BIGINT,
    load_wait_us BIGINT,
    swap BIGINT,
    end_seq BIGINT,
    ended_us BIGINT,
    total_us BIGINT,
    outcome VARCHAR,
    status INTEGER,
    code VARCHAR,
    reason VARCHAR,
    finish_reason VARCHAR,
    cancelled_by VARCHAR,
    begun BOOLEAN,
    suspect BOOLEAN,
    first_byte_us BIGINT,
    first_token_us BIGINT,
    ttft_us BIGINT,
    took_us BIGINT,
    bytes_out BIGINT,
    frames BIGINT,
    unread_frames BIGINT,
    prompt_tokens BIGINT,
    cached_tokens BIGINT,
    uncached_tokens BIGINT,
    completion_tokens BIGINT,
    prompt_us BIGINT,
    predicted_us BIGINT,
    prompt_tokens_per_s DOUBLE,
    tokens_per_s DOUBLE,
    draft_tokens BIGINT,
    draft_accepted_tokens BIGINT,
    cost DOUBLE
);
CREATE TABLE open_requests AS FROM ended_requests;
CREATE VIEW requests AS FROM ended_requests UNION ALL FROM open_requests;

-- apply events: RequestArrived RequestDispatched RequestRequeued RequestFinished RequestCancelled RequestFailed RequestRejected RequestLost ClientDetached
-- Those that something happens to in this batch.
CREATE OR REPLACE TEMP TABLE touched AS
FROM open_requests WHERE rid IN (SELECT rid FROM batch WHERE type <> 'RequestArrived');
DELETE FROM open_requests WHERE rid IN (SELECT rid FROM touched);

-- apply events: RequestArrived
INSERT INTO touched BY NAME
SELECT
    rid,
    seq,
    run,
    arrived_us,
    model,
    coalesce(asked, '') AS asked,
    coalesce(via, '') AS via,
    coalesce(route, '') AS route,
    coalesce(work, 'generation') AS work,
    coalesce(stream, false) AS stream,
    coalesce(detached, false) AS detached,
    coalesce(priority, 0) AS priority,
    coalesce(key, '') AS key,
    coalesce(client, '') AS client,
    coalesce(conversation, '') AS conversation,
    coalesce(session, '') AS session,
    after_rid,
    coalesce(slots_wanted, 1) AS slots_wanted,
    coalesce(body_bytes, 0) AS body_bytes,
    coalesce(prompt_bytes, 0) AS prompt_bytes,
    coalesce(prompt_tokens, 0) AS estimated_tokens,
    max_tokens,
    coalesce(messages, 0) AS messages,
    coalesce(tools, 0) AS tools,
    coalesce(rewrote, []) AS rewrote,
    'queued' AS stage,
    0 AS attempts
FROM batch
WHERE type = 'RequestArrived';

-- apply events: ClientDetached
UPDATE touched SET detached = true
FROM batch
WHERE batch.type = 'ClientDetached' AND batch.rid = touched.rid;

-- apply events: RequestDispatched
-- Of its wait, the part in which its replica was being loaded, victims that had to leave first included.
UPDATE touched SET
    stage = 'running',
    attempts = touched.attempts + sent.attempts,
    dispatched_us = sent.at_us,
    replica = sent.replica,
    rule = sent.rule,
    overtook = sent.overtook,
    wait_us = not_negative(sent.at_us - touched.arrived_us),
    load_wait_us = CASE WHEN sent.load_is_known
        THEN not_negative(least(sent.at_us, sent.ready_us) - greatest(touched.arrived_us, sent.begun_us))
    END,
    swap = CASE WHEN sent.load_is_known AND sent.ready_us > greatest(touched.arrived_us, sent.begun_us) THEN sent.swap END
FROM (
    SELECT
        last.*,
        replicas.swap,
        replicas.ready_us,
        coalesce(swaps.begun_us, replicas.ordered_us) AS begun_us,
        replicas.seq IS NOT NULL AND replicas.ready_us IS NOT NULL AS load_is_known
    FROM (
        SELECT
            rid,
            max(at_us) AS at_us,
            count(*) AS attempts,
            arg_max(replica, seq) AS replica,
            arg_max(coalesce(rule, 'least_busy'), seq) AS rule,
            arg_max(coalesce(overtook, 0), seq) AS overtook
        FROM batch
        WHERE type = 'RequestDispatched'
        GROUP BY rid
    ) AS last
    LEFT JOIN replicas ON replicas.replica = last.replica
    LEFT JOIN swaps ON swaps.swap = replicas.swap
) AS sent
WHERE sent.rid = touched.rid;

-- apply events: RequestRequeued (RequestDispatched)
UPDATE touched SET stage = last.stage
FROM (
    SELECT rid, arg_max(CASE type WHEN 'RequestRequeued' THEN 'queued' ELSE 'running' END, seq) AS stage
    FROM batch
    WHERE type IN ('RequestDispatched', 'RequestRequeued')
    GROUP BY rid
) AS last
WHERE last.rid = touched.rid;

-- apply events: RequestCancelled RequestFailed RequestRejected RequestLost
UPDATE touched SET
    stage = 'ended',
    end_seq = done.seq,
    ended_us = done.ended_us,
    total_us = not_negative(done.ended_us - touched.arrived_us),
    outcome = done.outcome,
    status = done.status,
    code = done.code,
    reason = done.reason,
    cancelled_by = CASE WHEN done.outcome = 'cancelled' THEN coalesce(done."by", 'client') END,
    begun = CASE WHEN done.outcome = 'failed' THEN coalesce(done.begun, false) END,
    suspect = CASE WHEN done.outcome = 'failed' THEN coalesce(done.suspect, false) END,
    bytes_out = done.bytes_out,
    frames = done.frames,
    unread_frames = done.unread_frames
FROM (
    SELECT
        batch.* EXCLUDE (outcome),
        lower(type[8:]) AS outcome,
        CASE WHEN type = 'RequestLost' THEN coalesce(runs.last_us, at_us) ELSE at_us END AS ended_us
    FROM batch
    LEFT JOIN runs ON runs.run = batch.lost_run
    WHERE type IN ('RequestCancelled', 'RequestFailed', 'RequestRejected', 'RequestLost')
) AS done
WHERE done.rid = touched.rid;

-- apply events: RequestFinished
-- By far the most ends: these rows are made as they are written, not changed in between, and in no order: rows of so many
-- columns are not cheap to sort.
INSERT INTO ended_requests
SELECT touched.* REPLACE (
    'ended' AS stage,
    done.seq AS end_seq,
    done.at_us AS ended_us,
    not_negative(done.at_us - touched.arrived_us) AS total_us,
    CASE WHEN coalesce(done.status, 200) < 400 THEN 'ok' ELSE 'error' END AS outcome,
    coalesce(done.status, 200) AS status,
    done.error AS reason,
    coalesce(done.finish_reason, '') AS finish_reason,
    done.first_byte_us AS first_byte_us,
    done.first_token_us AS first_token_us,
    touched.wait_us + done.first_token_us AS ttft_us,
    coalesce(done.took_us, 0) AS took_us,
    coalesce(done.bytes_out, 0) AS bytes_out,
    coalesce(done.frames, 0) AS frames,
    coalesce(done.prompt_tokens, done.cached_n + done.uncached_n) AS prompt_tokens,
    done.cached_n AS cached_tokens,
    done.uncached_n AS uncached_tokens,
    done.completion_n AS completion_tokens,
    done.timing.prompt_us AS prompt_us,
    done.timing.predicted_us AS predicted_us,
    done.timing.prompt_n / nullif(done.timing.prompt_us, 0) * 1e6 AS prompt_tokens_per_s,
    coalesce(
        done.timing.predicted_n / nullif(done.timing.predicted_us, 0),
        -- Of an answer in one piece, it is not known when its first token was made.
        CASE WHEN touched.stream AND done.completion_n > 1
            THEN (done.completion_n - 1) / nullif(done.took_us - done.first_token_us, 0)
        END
    ) * 1e6 AS tokens_per_s,
    done.timing.draft_n AS draft_tokens,
    done.timing.draft_accepted_n AS draft_accepted_tokens,
    (
        coalesce(done.uncached_n, done.prompt_tokens, 0) * done.input_price
        + coalesce(done.cached_n, 0) * done.cached_input_price
        + coalesce(done.completion_n, 0) * done.output_price
    ) / 1e6 AS cost
)
FROM (
    SELECT
        batch.*,
        config.input_price,
        config.cached_input_price,
        config.output_price,
        coalesce(cached_tokens, timing.cache_n) AS cached_n,
        coalesce(prompt_tokens - coalesce(cached_tokens, timing.cache_n), timing.prompt_n) AS uncached_n,
        coalesce(completion_tokens, timing.predicted_n) AS completion_n
    FROM (SELECT batch.* EXCLUDE (model), asked.model FROM batch JOIN touched AS asked USING (rid)) AS batch
    ASOF LEFT JOIN model_configs AS config ON config.model = batch.model AND batch.seq >= config.seq
    WHERE type = 'RequestFinished'
) AS done
JOIN touched USING (rid);
DELETE FROM touched WHERE rid IN (SELECT rid FROM batch WHERE type = 'RequestFinished');

-- apply events: RequestArrived RequestDispatched RequestRequeued RequestFinished RequestCancelled RequestFailed RequestRejected RequestLost ClientDetached
INSERT INTO open_requests FROM touched WHERE outcome IS NULL ORDER BY rid;
INSERT INTO ended_requests FROM touched WHERE outcome IS NOT NULL ORDER BY end_seq;

-- seed
INSERT INTO open_requests BY NAME
SELECT
    (each.value ->> 'rid')::BIGINT AS rid,
    (state ->> 'run')::INTEGER AS run,
    (each.value ->> 'arrived_us')::BIGINT AS arrived_us,
    each.value ->> 'model' AS model,
    each.value ->> 'work' AS work,
    (each.value ->> 'detached')::BOOLEAN AS detached,
    (each.value ->> 'priority')::INTEGER AS priority,
    each.value ->> 'key' AS key,
    each.value ->> 'conversation' AS conversation,
    (each.value ->> 'slots_wanted')::BIGINT AS slots_wanted,
    CASE WHEN each.value ->> 'replica' = '' THEN 'queued' ELSE 'running' END AS stage,
    (each.value ->> 'attempt')::INTEGER - (each.value ->> 'replica' = '')::INTEGER AS attempts,
    nullif(each.value ->> 'replica', '') AS replica
FROM checkpoint, json_each(state, '$.requests') AS each
WHERE (each.value ->> 'op')::BIGINT = 0;

-- prune
DELETE FROM ended_requests WHERE end_seq < (SELECT events FROM horizon);
