-- Comparisons of relays of Nostr with what is stored.

CREATE TABLE relay_audits (
    stream   text COLLATE "C" NOT NULL,
    day      date             NOT NULL,
    method   text             NOT NULL,
    events   int              NOT NULL,
    missing  int              NOT NULL,
    stored   int              NOT NULL,
    problem  text             NOT NULL DEFAULT '',
    tries    int              NOT NULL DEFAULT 1,
    retry_at timestamptz,
    ended_at timestamptz      NOT NULL DEFAULT now(),
    PRIMARY KEY (stream, day)
);

COMMENT ON TABLE  relay_audits IS 'What a relay of Nostr had of a day, by the authors'' dates in UTC, compared with what was stored. Rows stay for a month.';
COMMENT ON COLUMN relay_audits.method IS 'negentropy: sets of ids were compared (NIP-77). pages: all events were read.';
COMMENT ON COLUMN relay_audits.events IS 'Events of that day that were stored before.';
COMMENT ON COLUMN relay_audits.missing IS 'Events that the relay named, and that had never been stored. The sum of all tries.';
COMMENT ON COLUMN relay_audits.stored IS 'Records that changed because of them. Forged, deleted and replaced events change none. The sum of all tries.';
COMMENT ON COLUMN relay_audits.problem IS 'Why the day was not compared completely. Empty: it was.';
COMMENT ON COLUMN relay_audits.retry_at IS 'When it is tried again. NULL: never.';

-- Further periodic jobs that leave no dead letter.
CREATE OR REPLACE FUNCTION record_ended_job() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    most CONSTANT int   := 1 << 20;
    args CONSTANT bytea := convert_to(NEW.args::text, 'UTF8');
    why  CONSTANT text  := left(coalesce(NEW.errors[array_upper(NEW.errors, 1)] ->> 'error', 'it gave no reason'), 2000);
BEGIN
    IF NEW.state = 'completed' THEN
        UPDATE dead_letters SET state = 'retried', state_at = now() WHERE job = NEW.id AND state IN ('open', 'retrying');
        RETURN NULL;
    END IF;
    IF NEW.state = 'cancelled' AND NEW.metadata ? 'cancel_attempted_at' THEN -- a person cancelled it
        UPDATE dead_letters SET state = 'open', state_at = now() WHERE job = NEW.id AND state = 'retrying';
        RETURN NULL;
    END IF;
    UPDATE dead_letters
    SET state = CASE state WHEN 'dismissed' THEN state ELSE 'open' END, state_at = now(), last_seen = now(), last_cause = why, count = count + 1
    WHERE job = NEW.id;
    IF FOUND OR NEW.state = 'discarded' AND NEW.kind IN ('expire', 'check_alerts', 'check_counts', 'check_subjects', 'audit', 'audit_relays', 'fetch_card', 'fill_collections',
        'read_authors', 'read_relays', 'resolve_links', 'retry_dead_letters', 'sync_follows') THEN -- the next run does the same work
        RETURN NULL;
    END IF;
    INSERT INTO dead_letters AS d (key, stage, class, kind, queue, job, cause, raw, raw_bytes, first_seen, last_seen)
    VALUES (sha256(convert_to(E'job\n' || NEW.kind || E'\n', 'UTF8') || args), 'job',
            CASE NEW.state WHEN 'discarded' THEN 'retryable' ELSE 'permanent' END,
            NEW.kind, NEW.queue, NEW.id, why, substr(args, 1, most), octet_length(args), now(), now())
    ON CONFLICT (key) DO UPDATE
    SET state      = CASE d.state WHEN 'retried' THEN 'open' ELSE d.state END,
        job        = CASE d.state WHEN 'retrying' THEN d.job ELSE excluded.job END,
        last_seen  = excluded.last_seen,
        last_cause = excluded.cause,
        count      = d.count + 1;
    RETURN NULL;
END $$;
