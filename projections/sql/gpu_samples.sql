-- Each GPU about once a second, as its driver tells. NULL where it does not tell.

-- create
CREATE TABLE gpu_samples (
    seq BIGINT,
    at_us BIGINT,
    run INTEGER,
    gpu INTEGER,
    utilisation_percent INTEGER,
    used_mib BIGINT,
    total_mib BIGINT,
    temperature_c INTEGER,
    power_mw BIGINT,
    processes JSON
);

-- apply observations: GpuSampled
INSERT INTO gpu_samples
SELECT seq, at_us, run, gpu, utilisation_percent, used_mib, total_mib, temperature_c, power_mw, processes
FROM batch
WHERE type = 'GpuSampled'
ORDER BY seq;

-- prune
DELETE FROM gpu_samples WHERE seq < (SELECT observations FROM horizon);
