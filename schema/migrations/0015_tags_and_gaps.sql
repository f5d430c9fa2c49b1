-- Every job carries tags that people read and choose by in River UI, whoever adds it. A gap that cannot be closed says why.

CREATE FUNCTION tag(p_text text) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT substring(left(regexp_replace(p_text, '[^A-Za-z0-9_-]+', '-', 'g'), 255) FROM '^-*([A-Za-z0-9_][A-Za-z0-9_-]+[A-Za-z0-9_])-*$')
$$;

COMMENT ON FUNCTION tag IS 'A text as a tag that River takes; NULL where nothing of it can be one.';

-- Each branch is an expression that the server plans once a session: it is asked of every job.
CREATE FUNCTION tags_of(p_kind text, p_priority int, p_args jsonb) RETURNS text[] LANGUAGE plpgsql STABLE AS $$
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
                                  CASE p_args ->> 'all' WHEN 'true' THEN 'every-account' ELSE 'one-account' END], NULL);
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

COMMENT ON FUNCTION tags_of IS 'The tags of a job: which stream, which kind of watch, why a feed is read. A few words, never a stranger''s.';

CREATE FUNCTION tag_job() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    kept text[] := NEW.tags;
BEGIN
    IF kept = '{}' THEN
        NEW.tags := tags_of(NEW.kind, NEW.priority, NEW.args);
        RETURN NEW;
    END IF;
    IF TG_OP = 'UPDATE' THEN -- another priority is another reason
        SELECT coalesce(array_agg(t), '{}') INTO kept FROM unnest(NEW.tags) AS t WHERE t <> ALL (tags_of(OLD.kind, OLD.priority, OLD.args));
    END IF;
    SELECT coalesce(array_agg(t ORDER BY n), '{}') INTO NEW.tags
    FROM (SELECT t, min(n) AS n FROM unnest(tags_of(NEW.kind, NEW.priority, NEW.args) || kept) WITH ORDINALITY AS a (t, n) GROUP BY t) AS b;
    RETURN NEW;
END $$;

COMMENT ON FUNCTION tag_job IS 'Gives a job its tags, those first, and keeps what it has beside them.';

CREATE TRIGGER job_tagged BEFORE INSERT ON river_job FOR EACH ROW EXECUTE FUNCTION tag_job();
CREATE TRIGGER job_retagged BEFORE UPDATE OF priority ON river_job FOR EACH ROW WHEN (OLD.priority <> NEW.priority) EXECUTE FUNCTION tag_job();

ALTER TABLE gaps ADD COLUMN problem text NOT NULL DEFAULT '';

COMMENT ON COLUMN gaps.problem IS 'Why it cannot be closed, and stays open until somebody accepts it; empty where it can.';
