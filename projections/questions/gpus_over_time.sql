-- Utilisation, memory, temperature and power of each GPU over time, as means of each step.
SELECT
    at_us // $bucket_us * $bucket_us AS at_us,
    gpu,
    avg(utilisation_percent) AS utilisation_percent,
    avg(used_mib) AS used_mib,
    max(total_mib) AS total_mib,
    avg(temperature_c) AS temperature_c,
    avg(power_mw) AS power_mw
FROM gpu_samples
WHERE at_us >= $since_us AND at_us < $until_us
GROUP BY 1, 2
ORDER BY 2, 1
