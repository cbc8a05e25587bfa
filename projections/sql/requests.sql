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
    slots_wanted INTEGER,
    body_bytes BIGINT,
    prompt_bytes BIGINT,
    estimated_tokens BIGINT,
    max_tokens BIGINT,
    messages INTEGER,
    tools INTEGER,
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
CREATE OR REPLACE TEMP TABLE changed_requests AS
WITH arrived AS (
    SELECT
        rid,
        seq,
        run,
        arrived_us,
        model,
        coalesce(asked, '') AS asked,
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
        'queued' AS stage,
        0 AS attempts
    FROM batch
    WHERE type = 'RequestArrived'
),
known AS (
    FROM open_requests WHERE rid IN (SELECT rid FROM batch)
    UNION ALL BY NAME
    FROM arrived
),
sent AS (
    SELECT
        rid,
        max(at_us) AS dispatched_us,
        count(*) AS attempts,
        arg_max(replica, seq) AS replica,
        arg_max(coalesce(rule, 'least_busy'), seq) AS rule,
        arg_max(coalesce(overtook, 0), seq) AS overtook
    FROM batch
    WHERE type = 'RequestDispatched'
    GROUP BY rid
),
-- Of its wait, the part in which its replica was being loaded, victims that had to leave first included.
served AS (
    SELECT
        sent.*,
        swaps.swap,
        CASE WHEN replicas.ready_us IS NOT NULL AND replicas.seq IS NOT NULL THEN not_negative(
            least(sent.dispatched_us, replicas.ready_us)
            - greatest(known.arrived_us, coalesce(swaps.begun_us, replicas.ordered_us))
        ) END AS load_wait_us
    FROM sent
    JOIN known ON known.rid = sent.rid
    LEFT JOIN replicas ON replicas.replica = sent.replica
    LEFT JOIN swaps ON swaps.swap = replicas.swap
),
last_move AS (
    SELECT rid, arg_max(type, seq) AS type
    FROM batch
    WHERE type IN ('RequestDispatched', 'RequestRequeued')
    GROUP BY rid
),
turned AS (
    SELECT rid, true AS detached FROM batch WHERE type = 'ClientDetached' GROUP BY rid
),
ends AS (
    SELECT
        batch.*,
        model_configs.input_price,
        model_configs.cached_input_price,
        model_configs.output_price,
        coalesce(batch.cached_tokens, batch.timing.cache_n) AS cached_n,
        coalesce(batch.prompt_tokens - coalesce(batch.cached_tokens, batch.timing.cache_n), batch.timing.prompt_n) AS uncached_n,
        coalesce(batch.completion_tokens, batch.timing.predicted_n) AS completion_n
    FROM batch
    JOIN known ON known.rid = batch.rid
    ASOF LEFT JOIN model_configs ON model_configs.model = known.model AND batch.seq >= model_configs.seq
    WHERE batch.type IN ('RequestFinished', 'RequestCancelled', 'RequestFailed', 'RequestRejected', 'RequestLost')
    QUALIFY row_number() OVER (PARTITION BY batch.rid ORDER BY batch.seq) = 1
)
SELECT known.* REPLACE (
    CASE
        WHEN ends.rid IS NOT NULL THEN 'ended'
        WHEN last_move.type = 'RequestDispatched' THEN 'running'
        WHEN last_move.type = 'RequestRequeued' THEN 'queued'
        ELSE known.stage
    END AS stage,
    coalesce(turned.detached, known.detached) AS detached,
    known.attempts + coalesce(served.attempts, 0) AS attempts,
    coalesce(served.dispatched_us, known.dispatched_us) AS dispatched_us,
    coalesce(served.replica, known.replica) AS replica,
    coalesce(served.rule, known.rule) AS rule,
    coalesce(served.overtook, known.overtook) AS overtook,
    not_negative(coalesce(served.dispatched_us, known.dispatched_us) - known.arrived_us) AS wait_us,
    coalesce(served.load_wait_us, known.load_wait_us) AS load_wait_us,
    CASE WHEN coalesce(served.load_wait_us, known.load_wait_us) > 0 THEN coalesce(served.swap, known.swap) END AS swap,
    ends.seq AS end_seq,
    CASE WHEN ends.type = 'RequestLost' THEN coalesce(runs.last_us, ends.at_us) ELSE ends.at_us END AS ended_us,
    not_negative(
        CASE WHEN ends.type = 'RequestLost' THEN coalesce(runs.last_us, ends.at_us) ELSE ends.at_us END - known.arrived_us
    ) AS total_us,
    CASE ends.type
        WHEN 'RequestFinished' THEN CASE WHEN coalesce(ends.status, 200) < 400 THEN 'ok' ELSE 'error' END
        WHEN 'RequestCancelled' THEN 'cancelled'
        WHEN 'RequestFailed' THEN 'failed'
        WHEN 'RequestRejected' THEN 'rejected'
        WHEN 'RequestLost' THEN 'lost'
    END AS outcome,
    CASE WHEN ends.type = 'RequestFinished' THEN coalesce(ends.status, 200) ELSE ends.status END AS status,
    ends.code AS code,
    coalesce(ends.reason, ends.error) AS reason,
    ends.finish_reason AS finish_reason,
    CASE WHEN ends.type = 'RequestCancelled' THEN coalesce(ends."by", 'client') END AS cancelled_by,
    CASE WHEN ends.type = 'RequestFailed' THEN coalesce(ends.begun, false) END AS begun,
    CASE WHEN ends.type = 'RequestFailed' THEN coalesce(ends.suspect, false) END AS suspect,
    ends.first_byte_us AS first_byte_us,
    ends.first_token_us AS first_token_us,
    not_negative(coalesce(served.dispatched_us, known.dispatched_us) - known.arrived_us) + ends.first_token_us AS ttft_us,
    CASE WHEN ends.type = 'RequestFinished' THEN coalesce(ends.took_us, 0) END AS took_us,
    ends.bytes_out AS bytes_out,
    ends.frames AS frames,
    ends.unread_frames AS unread_frames,
    coalesce(ends.prompt_tokens, ends.cached_n + ends.uncached_n) AS prompt_tokens,
    ends.cached_n AS cached_tokens,
    ends.uncached_n AS uncached_tokens,
    ends.completion_n AS completion_tokens,
    ends.timing.prompt_us AS prompt_us,
    ends.timing.predicted_us AS predicted_us,
    ends.timing.prompt_n / nullif(ends.timing.prompt_us, 0) * 1e6 AS prompt_tokens_per_s,
    coalesce(
        ends.timing.predicted_n / nullif(ends.timing.predicted_us, 0),
        (ends.completion_n - 1) / nullif(ends.took_us - ends.first_token_us, 0)
    ) * 1e6 AS tokens_per_s,
    ends.timing.draft_n AS draft_tokens,
    ends.timing.draft_accepted_n AS draft_accepted_tokens,
    (coalesce(ends.uncached_n, ends.prompt_tokens, 0) * ends.input_price
        + coalesce(ends.cached_n, 0) * ends.cached_input_price
        + coalesce(ends.completion_n, 0) * ends.output_price) / 1e6 AS cost
)
FROM known
LEFT JOIN served ON served.rid = known.rid
LEFT JOIN last_move ON last_move.rid = known.rid
LEFT JOIN turned ON turned.rid = known.rid
LEFT JOIN ends ON ends.rid = known.rid
LEFT JOIN runs ON runs.run = ends.lost_run;

DELETE FROM open_requests WHERE rid IN (SELECT rid FROM changed_requests);
INSERT INTO open_requests FROM changed_requests WHERE outcome IS NULL ORDER BY rid;
INSERT INTO ended_requests FROM changed_requests WHERE outcome IS NOT NULL ORDER BY end_seq;

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
    (each.value ->> 'slots_wanted')::INTEGER AS slots_wanted,
    CASE WHEN each.value ->> 'replica' = '' THEN 'queued' ELSE 'running' END AS stage,
    (each.value ->> 'attempt')::INTEGER - (each.value ->> 'replica' = '')::INTEGER AS attempts,
    nullif(each.value ->> 'replica', '') AS replica
FROM checkpoint, json_each(state, '$.requests') AS each
WHERE (each.value ->> 'op')::BIGINT = 0;

-- prune
DELETE FROM ended_requests WHERE end_seq < (SELECT events FROM horizon);
