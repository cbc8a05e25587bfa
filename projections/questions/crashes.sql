-- What ended without being told to: crashes, failed loads, stalls, with the last lines of the process.
SELECT seq, at_us, model, replica, kind, cause, reason, exit_code, signal, lived_us, last_lines
FROM crashes
WHERE at_us >= $since_us AND at_us < $until_us AND ($model = '' OR model = $model)
ORDER BY seq DESC
