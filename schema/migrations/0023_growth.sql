-- What is kept of dead letters is bounded, whatever strangers send.

CREATE INDEX dead_letters_nameless ON dead_letters (id) WHERE did IS NULL AND stage <> 'job';
CREATE INDEX dead_letters_large ON dead_letters (id) WHERE octet_length(raw) > 16384 AND stage <> 'job';

-- Of inputs that no retry can store, only the beginning is of use.
UPDATE dead_letters SET raw = substr(raw, 1, 16384)
WHERE octet_length(raw) > 16384 AND octet_length(raw) < raw_bytes AND stage <> 'job';

COMMENT ON COLUMN dead_letters.raw IS 'The input as it came, of a job its arguments; only its beginning where raw_bytes is larger; empty once its record or account is deleted.';
