-- Dead letters are listed, replayed and dismissed; jobs that ended without success are among them.

ALTER TABLE dead_letters
    DROP CONSTRAINT dead_letters_stage_check,
    ADD CONSTRAINT dead_letters_stage_check CHECK (stage IN ('decode', 'commit', 'process', 'job')),
    ADD COLUMN class      text NOT NULL DEFAULT 'permanent' CHECK (class IN ('permanent', 'retryable')),
    ADD COLUMN kind       text,
    ADD COLUMN queue      text,
    ADD COLUMN job        bigint,
    ADD COLUMN last_cause text NOT NULL DEFAULT '',
    ADD COLUMN state      text NOT NULL DEFAULT 'open' CHECK (state IN ('open', 'replaying', 'replayed', 'dismissed')),
    ADD COLUMN state_at   timestamptz;
CREATE INDEX dead_letters_replaying ON dead_letters (id) WHERE state = 'replaying';
CREATE INDEX dead_letters_job ON dead_letters (job) WHERE job IS NOT NULL;

COMMENT ON TABLE  dead_letters IS 'Events, records and jobs that could not be processed, with the cause: set aside so that the rest goes on.';
COMMENT ON COLUMN dead_letters.key IS 'sha256 over the stage and the input, of a job over its kind and arguments: the same letter twice is one row.';
COMMENT ON COLUMN dead_letters.stage IS 'decode: the frame is no event; commit: the event cannot be stored; process: the record cannot be projected; job: the job ended without success.';
COMMENT ON COLUMN dead_letters.class IS 'permanent: no retry would help until something else changes; retryable: every retry failed.';
COMMENT ON COLUMN dead_letters.cause IS 'Why it failed the first time, with path, expected and received where they are known.';
COMMENT ON COLUMN dead_letters.last_cause IS 'Why it failed the last time, where that was not the first.';
COMMENT ON COLUMN dead_letters.raw IS 'The input as it came, of a job its arguments; its first megabyte where raw_bytes is larger.';
COMMENT ON COLUMN dead_letters.kind IS 'Of a job: its kind. queue is where it was worked.';
COMMENT ON COLUMN dead_letters.job IS 'Of a job: its id, or that of the job that replays it. Null while a replay of it is asked for.';
COMMENT ON COLUMN dead_letters.state IS 'open; replaying: asked for, or under way; replayed: it passed; dismissed: it stays so, however often it comes again.';

CREATE FUNCTION note_ended_job() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    most CONSTANT int   := 1 << 20;
    args CONSTANT bytea := convert_to(NEW.args::text, 'UTF8');
    why  CONSTANT text  := left(coalesce(NEW.errors[array_upper(NEW.errors, 1)] ->> 'error', 'it gave no reason'), 2000);
BEGIN
    IF NEW.state = 'completed' THEN
        UPDATE dead_letters SET state = 'replayed', state_at = now() WHERE job = NEW.id AND state IN ('open', 'replaying');
        RETURN NULL;
    END IF;
    IF NEW.state = 'cancelled' AND NEW.metadata ? 'cancel_attempted_at' THEN -- by a person, who knows
        UPDATE dead_letters SET state = 'open', state_at = now() WHERE job = NEW.id AND state = 'replaying';
        RETURN NULL;
    END IF;
    UPDATE dead_letters
    SET state = CASE state WHEN 'dismissed' THEN state ELSE 'open' END, state_at = now(), last_seen = now(), last_cause = why, count = count + 1
    WHERE job = NEW.id;
    IF FOUND THEN
        RETURN NULL;
    END IF;
    INSERT INTO dead_letters AS d (key, stage, class, kind, queue, job, cause, raw, raw_bytes, first_seen, last_seen)
    VALUES (sha256(convert_to(E'job\n' || NEW.kind || E'\n', 'UTF8') || args), 'job',
            CASE NEW.state WHEN 'discarded' THEN 'retryable' ELSE 'permanent' END,
            NEW.kind, NEW.queue, NEW.id, why, substr(args, 1, most), octet_length(args), now(), now())
    ON CONFLICT (key) DO UPDATE
    SET state      = CASE d.state WHEN 'replayed' THEN 'open' ELSE d.state END,
        job        = CASE d.state WHEN 'replaying' THEN d.job ELSE excluded.job END,
        last_seen  = excluded.last_seen,
        last_cause = excluded.cause,
        count      = d.count + 1;
    RETURN NULL;
END $$;

COMMENT ON FUNCTION note_ended_job IS 'Makes a dead letter of a job that is discarded or cancels itself, whoever ends it; settles the letter of one that succeeds at last.';

CREATE TRIGGER job_ended AFTER UPDATE ON river_job FOR EACH ROW
    WHEN (OLD.state <> NEW.state AND (NEW.state IN ('discarded', 'cancelled')
          OR NEW.state = 'completed' AND (cardinality(NEW.errors) > 0 OR 'dead-letter' = ANY (NEW.tags))))
    EXECUTE FUNCTION note_ended_job();

CREATE FUNCTION ask_for_replays() RETURNS bigint LANGUAGE sql AS $$
    SELECT enqueue_job('replay_dead_letters', 'network', '{}')
$$;

COMMENT ON FUNCTION ask_for_replays IS 'Adds a job that replays every dead letter whose state is replaying, and wakes a worker.';

CREATE FUNCTION replay_dead_letter(letter bigint) RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM dead_letters AS d WHERE d.id = letter FOR UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'there is no dead letter %', coalesce(letter::text, 'NULL') USING ERRCODE = '22023';
    END IF;
    UPDATE dead_letters AS d SET state = 'replaying', state_at = now(), job = NULL
    WHERE d.id = letter
      AND NOT (d.state = 'replaying' AND EXISTS (
          SELECT FROM river_job AS j
          WHERE j.id = d.job AND j.state IN ('available', 'pending', 'retryable', 'running', 'scheduled')
      ));
    RETURN ask_for_replays();
END $$;

COMMENT ON FUNCTION replay_dead_letter IS 'Has a dead letter tried again, in whatever state it is; answers the id of the job that does it.';

CREATE FUNCTION check_letters(stage text, class text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF stage NOT IN ('decode', 'commit', 'process', 'job') THEN
        RAISE EXCEPTION '% is no stage', quote_literal(left(stage, 100)) USING ERRCODE = '22023', HINT = 'A stage is decode, commit, process or job.';
    END IF;
    IF class NOT IN ('permanent', 'retryable') THEN
        RAISE EXCEPTION '% is no class', quote_literal(left(class, 100)) USING ERRCODE = '22023', HINT = 'A class is permanent or retryable.';
    END IF;
END $$;

COMMENT ON FUNCTION check_letters IS 'Refuses a choice of dead letters that would silently be none. NULL chooses all.';

CREATE FUNCTION replay_dead_letters(stage text DEFAULT NULL, class text DEFAULT NULL) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    answer bigint;
BEGIN
    PERFORM check_letters(stage, class);
    WITH chosen AS MATERIALIZED (
        SELECT d.id FROM dead_letters AS d
        WHERE d.state = 'open' AND d.stage = coalesce(replay_dead_letters.stage, d.stage) AND d.class = coalesce(replay_dead_letters.class, d.class)
        ORDER BY d.id
        FOR UPDATE
    )
    UPDATE dead_letters AS d SET state = 'replaying', state_at = now(), job = NULL FROM chosen AS c WHERE d.id = c.id;
    GET DIAGNOSTICS answer = ROW_COUNT;
    IF answer > 0 THEN
        PERFORM ask_for_replays();
    END IF;
    RETURN answer;
END $$;

COMMENT ON FUNCTION replay_dead_letters IS 'Has every open dead letter tried again, or those of a stage or class; answers how many.';

CREATE FUNCTION dismiss_dead_letter(letter bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    UPDATE dead_letters AS d SET state = 'dismissed', state_at = now() WHERE d.id = letter;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'there is no dead letter %', coalesce(letter::text, 'NULL') USING ERRCODE = '22023';
    END IF;
END $$;

COMMENT ON FUNCTION dismiss_dead_letter IS 'Says that a dead letter needs nothing: it is kept, and neither listed nor replayed with the others.';

CREATE FUNCTION dismiss_dead_letters(stage text DEFAULT NULL, class text DEFAULT NULL) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    answer bigint;
BEGIN
    PERFORM check_letters(stage, class);
    WITH chosen AS MATERIALIZED (
        SELECT d.id FROM dead_letters AS d
        WHERE d.state = 'open' AND d.stage = coalesce(dismiss_dead_letters.stage, d.stage) AND d.class = coalesce(dismiss_dead_letters.class, d.class)
        ORDER BY d.id
        FOR UPDATE
    )
    UPDATE dead_letters AS d SET state = 'dismissed', state_at = now() FROM chosen AS c WHERE d.id = c.id;
    GET DIAGNOSTICS answer = ROW_COUNT;
    RETURN answer;
END $$;

COMMENT ON FUNCTION dismiss_dead_letters IS 'Dismisses every open dead letter, or those of a stage or class; answers how many.';
