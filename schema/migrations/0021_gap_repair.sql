-- A gap closes when the accounts were compared with their repositories; an account that cannot be read is read when it can be.

ALTER TABLE accounts
    ADD COLUMN feed_since   timestamptz,
    ADD COLUMN reread_since timestamptz,
    ADD COLUMN reread_asked int NOT NULL DEFAULT 0,
    ADD COLUMN reread_at    timestamptz;
CREATE INDEX accounts_reread ON accounts (reread_at) WHERE reread_since IS NOT NULL;

COMMENT ON COLUMN accounts.feed_since IS 'What it wrote since then is stored, as long as it is kept: so far back its posts were read. Null: they have not been read to the end yet.';
COMMENT ON COLUMN accounts.reread_since IS 'What it wrote since then may be missing, because it could not be read: it is read again when it is active. Null: nothing is.';
COMMENT ON COLUMN accounts.reread_asked IS 'How often a second read was asked for: one that began earlier does not settle it.';
COMMENT ON COLUMN accounts.reread_at IS 'When to try again, where it is active and could not be read.';

-- How far back the posts of accounts were read is not known of the time before: those written since the follow are.
UPDATE accounts AS a SET feed_since = w.added_at
FROM (SELECT did, min(added_at) AS added_at FROM watched GROUP BY did) AS w
WHERE w.did = a.did AND a.feed_read_at IS NOT NULL;

-- An account is followed, and becomes active, through the stream, a sync or a person: its posts are read again.
CREATE FUNCTION read_again() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    followed timestamptz;
BEGIN
    SELECT min(w.added_at) INTO followed FROM watched AS w WHERE w.did = NEW.did;
    IF followed IS NULL THEN
        RETURN NEW;
    END IF;
    IF OLD.status = 'deleted' THEN -- what it had written may have been purged
        NEW.reread_since := least(NEW.reread_since, NEW.feed_since, followed);
        NEW.reread_asked := NEW.reread_asked + 1;
    END IF;
    NEW.reread_at := now() + interval '1 hour'; -- where the job below is lost
    PERFORM enqueue_request(jsonb_build_object('account', NEW.did, 'since', NEW.reread_since, 'priority', 1));
    RETURN NEW;
END $$;

COMMENT ON FUNCTION read_again IS 'Has an account that is active again read, where something of it may be missing.';

CREATE TRIGGER account_revived BEFORE UPDATE OF status ON accounts FOR EACH ROW
    WHEN (NEW.status = 'active' AND OLD.status <> 'active' AND (NEW.reread_since IS NOT NULL OR OLD.status = 'deleted')) EXECUTE FUNCTION read_again();

ALTER TABLE gaps
    ADD COLUMN checked int NOT NULL DEFAULT 0,
    ADD COLUMN later   int NOT NULL DEFAULT 0;

-- An open gap counts those that are still to be compared.
UPDATE gaps AS g SET accounts = g.unchecked + (SELECT count(*) FROM gap_backfills AS b WHERE b.gap_id = g.id) WHERE g.closed_at IS NULL;

COMMENT ON COLUMN gaps.accounts IS 'How many accounts are to be compared with their repositories before it is closed: checked and unchecked are done, the others are left.';
COMMENT ON COLUMN gaps.checked IS 'How many of them were compared.';
COMMENT ON COLUMN gaps.unchecked IS 'How many of them could not be: they are read when they can be.';
COMMENT ON COLUMN gaps.later IS 'How many other accounts were not active: they are read when they are.';
COMMENT ON TABLE gap_backfills IS 'The accounts that are still to be compared with their repositories before a gap is closed.';

ALTER TABLE audits
    ADD COLUMN pending int NOT NULL DEFAULT 0,
    ALTER COLUMN from_at DROP NOT NULL,
    ALTER COLUMN to_at DROP NOT NULL;

COMMENT ON COLUMN audits.from_at IS 'The posts compared have rkeys from this moment on, up to to_at; of an account, from when its posts are claimed to be stored. Null: nothing was compared.';
COMMENT ON COLUMN audits.to_at IS 'See from_at.';
COMMENT ON COLUMN audits.pending IS 'How many followed accounts were left out, because their posts have not been read to the end yet.';
COMMENT ON COLUMN audits.score IS 'The part of the posts that agree, from 0 to 1; null where no post was compared.';

-- As before, but for the requests of a second read.
CREATE OR REPLACE FUNCTION tags_of(p_kind text, p_priority int, p_args jsonb) RETURNS text[] LANGUAGE plpgsql STABLE AS $$
DECLARE
    reasons CONSTANT text[] := ARRAY['gap', 'manual', 'new-follow', 'cold-start'];
    found   text;
BEGIN
    CASE p_kind
    WHEN 'process_posts' THEN
        IF p_args ->> 'stream' <> '' THEN
            RETURN ARRAY[coalesce(tag('stream-' || (p_args ->> 'stream')), 'stream')];
        END IF;
        RETURN ARRAY[CASE WHEN p_args ? 'arrived' THEN 'replay' ELSE 'feed' END];
    WHEN 'backfill_account' THEN
        RETURN ARRAY[reasons[p_priority]];
    WHEN 'request_backfill' THEN
        RETURN array_remove(ARRAY[CASE WHEN p_args ->> 'priority' IN ('1', '2', '3', '4') THEN reasons[(p_args ->> 'priority')::int] END,
                                  CASE WHEN p_args ->> 'all' = 'true' THEN 'every-account' WHEN p_args ? 'watch' THEN 'second-read' ELSE 'one-account' END], NULL);
    WHEN 'sync_follows' THEN
        IF p_args ->> 'watch' = '0' THEN
            RETURN ARRAY['every-watch'];
        END IF;
        SELECT w.kind INTO found FROM watches AS w WHERE w.id::text = p_args ->> 'watch';
        RETURN ARRAY[coalesce(found, 'no-watch')];
    WHEN 'close_gap' THEN
        SELECT coalesce(tag('stream-' || g.stream), 'stream') INTO found FROM gaps AS g WHERE g.id::text = p_args ->> 'gap';
        RETURN ARRAY[coalesce(found, 'no-gap')];
    WHEN 'send_alert' THEN
        RETURN array_remove(ARRAY[tag(p_args ->> 'severity'), tag(p_args ->> 'name'), CASE p_args ->> 'resolved' WHEN 'true' THEN 'resolved' ELSE 'fires' END], NULL);
    WHEN 'replay_dead_letters' THEN
        RETURN ARRAY['asked-for'];
    WHEN 'check_alerts', 'expire', 'audit' THEN
        RETURN ARRAY['periodic'];
    ELSE
        RETURN '{}';
    END CASE;
END $$;
