-- Whom Weir follows, and why.

CREATE TABLE watches (
    id        bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    target    text        NOT NULL CHECK (target <> ''),
    kind      text        NOT NULL DEFAULT 'follows' CHECK (kind IN ('follows', 'account', 'list', 'starterpack', 'second-degree')),
    at_least  int         NOT NULL DEFAULT 5 CHECK (at_least > 0),
    added_at  timestamptz NOT NULL DEFAULT now(),
    synced_at timestamptz,
    problem   text        NOT NULL DEFAULT '',
    UNIQUE (target, kind)
);

COMMENT ON TABLE  watches IS 'Why accounts are followed. Without a row here, the whole network is. Add and delete rows as you like: the lists follow.';
COMMENT ON COLUMN watches.target IS 'A handle, a DID, or the at:// or bsky.app address of a list or starter pack.';
COMMENT ON COLUMN watches.kind IS 'follows: whom the target follows; account: the target alone; list, starterpack: its members; second-degree: whom at_least of those whom the target follows follow.';
COMMENT ON COLUMN watches.synced_at IS 'When its members were last read, completely.';
COMMENT ON COLUMN watches.problem IS 'Why they could not be read, the last time; empty when they could.';

CREATE TABLE watched (
    watch_id bigint           NOT NULL REFERENCES watches ON DELETE CASCADE,
    did      text COLLATE "C" NOT NULL,
    added_at timestamptz      NOT NULL DEFAULT now(),
    PRIMARY KEY (did, watch_id)
);
CREATE INDEX watched_watch ON watched (watch_id);

COMMENT ON TABLE watched IS 'The accounts that each watch brings.';

ALTER TABLE accounts
    ADD COLUMN feed_newest  timestamptz,
    ADD COLUMN feed_read_at timestamptz,
    ADD COLUMN feed_problem text NOT NULL DEFAULT '';

COMMENT ON COLUMN accounts.feed_newest IS 'The newest post seen in a complete backfill: the next one needs to go back no further.';
COMMENT ON COLUMN accounts.feed_read_at IS 'When its feed was last read to the end of a window.';
COMMENT ON COLUMN accounts.feed_problem IS 'Why its feed could not be read, the last time; empty when it could.';

CREATE VIEW follows AS
SELECT w.did, coalesce(a.handle, '') AS handle, a.display_name, min(w.added_at) AS added_at, max(s.synced_at) AS last_seen_at,
       a.feed_read_at IS NOT NULL AS backfill_completed
FROM watched AS w
JOIN watches AS s ON s.id = w.watch_id
LEFT JOIN accounts AS a ON a.did = w.did
GROUP BY w.did, a.handle, a.display_name, a.feed_read_at;

COMMENT ON VIEW follows IS 'Every account followed, once.';

-- The running consumers listen: they change what they ask for.
CREATE FUNCTION follows_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('weir_follows', '');
    RETURN NULL;
END $$;

COMMENT ON FUNCTION follows_changed IS 'Tells the consumers that the followed accounts are others now.';

CREATE TRIGGER watched_changed AFTER INSERT OR DELETE OR TRUNCATE ON watched FOR EACH STATEMENT EXECUTE FUNCTION follows_changed();
CREATE TRIGGER watches_changed AFTER INSERT OR DELETE OR TRUNCATE ON watches FOR EACH STATEMENT EXECUTE FUNCTION follows_changed();

CREATE FUNCTION sync_watch() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO river_job (args, kind, max_attempts, priority, queue)
    VALUES (jsonb_build_object('watch', NEW.id), 'sync_follows', 25, 1, 'network');
    PERFORM pg_notify(current_schema() || '.river_insert', '{"queue":"network"}');
    RETURN NULL;
END $$;

COMMENT ON FUNCTION sync_watch IS 'Has the members of a new watch read at once.';

CREATE TRIGGER watch_added AFTER INSERT ON watches FOR EACH ROW EXECUTE FUNCTION sync_watch();
