-- Reposts and quotes: shares through another post, and what waits for that post.

ALTER TABLE shares ADD COLUMN subject_did text COLLATE "C", ADD COLUMN subject_rkey text COLLATE "C";
CREATE INDEX shares_subject ON shares (subject_did, subject_rkey, did, collection, rkey) WHERE subject_did IS NOT NULL;

COMMENT ON TABLE  shares IS 'Who shared which link by which record: a post that contains it, or a repost or quote of such a post. A share outlives its record''s retention, and goes only when the author takes it back or the link expires. A share through a subject counts only while subjects names the link and the subject''s author is active.';
COMMENT ON COLUMN shares.how IS 'post: the record itself contains the link; quote: it quotes a post that contains it; repost: it reposts one.';
COMMENT ON COLUMN shares.subject_did IS 'The author of the post that is quoted or reposted. NULL: the record itself contains the link.';
COMMENT ON COLUMN shares.subject_rkey IS 'The rkey of that post in app.bsky.feed.post.';

CREATE TABLE subjects (
    did        text COLLATE "C" NOT NULL,
    collection text COLLATE "C" NOT NULL,
    rkey       text COLLATE "C" NOT NULL,
    links      bigint[]         NOT NULL DEFAULT '{}',
    shown      boolean          NOT NULL DEFAULT true,
    fetched_at timestamptz,
    fetch_at   timestamptz,
    tries      int              NOT NULL DEFAULT 0,
    checked_at timestamptz      NOT NULL DEFAULT now(),
    PRIMARY KEY (did, collection, rkey)
) WITH (autovacuum_vacuum_scale_factor = 0.05);
CREATE INDEX subjects_fetch_at ON subjects (fetch_at) WHERE fetch_at IS NOT NULL;
CREATE INDEX subjects_checked_at ON subjects (checked_at);

COMMENT ON TABLE  subjects IS 'Posts that are reposted or quoted, with the links they share. A deletion removes the row in the transaction that brings it: then no share through the post counts.';
COMMENT ON COLUMN subjects.links IS 'The ids of the links that the post itself contains. Empty: none, the post is not shown, or it has not been fetched yet.';
COMMENT ON COLUMN subjects.shown IS 'False: the AppView did not show the post when it was last fetched.';
COMMENT ON COLUMN subjects.fetched_at IS 'When the post was last fetched from the AppView. NULL: never, because it is stored or not fetched yet.';
COMMENT ON COLUMN subjects.fetch_at IS 'When the post is fetched next. NULL: not until somebody shares it again; a stored post is never fetched.';
COMMENT ON COLUMN subjects.tries IS 'How often in a row the AppView did not show the post.';
COMMENT ON COLUMN subjects.checked_at IS 'When it was last checked that a share needs the row, or a record waits for it.';

CREATE VIEW projected_subjects AS
SELECT did, collection, rkey, links FROM subjects WHERE fetched_at IS NULL AND fetch_at IS NULL;

COMMENT ON VIEW projected_subjects IS 'Subjects whose links are those of their own shares: their posts are stored, or have expired. The others are fetched from the AppView and may never have been stored, so audits do not compare them.';

CREATE TABLE changed_subjects (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    did        text COLLATE "C" NOT NULL,
    collection text COLLATE "C" NOT NULL,
    rkey       text COLLATE "C" NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0.05);

COMMENT ON TABLE changed_subjects IS 'Subjects that were deleted or have other links than before. The job check_subjects projects their reposts and quotes again, and removes the row.';

-- Whoever deletes or changes a subject writes one row, however many accounts reposted it.
CREATE FUNCTION record_changed_subjects() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' THEN
        INSERT INTO changed_subjects (did, collection, rkey) SELECT o.did, o.collection, o.rkey FROM old_rows AS o WHERE o.links <> '{}';
        INSERT INTO pending_counts (subject_did, subject_rkey) SELECT o.did, o.rkey FROM old_rows AS o WHERE o.links <> '{}';
    ELSIF TG_OP = 'UPDATE' THEN
        INSERT INTO changed_subjects (did, collection, rkey)
        SELECT n.did, n.collection, n.rkey FROM new_rows AS n JOIN old_rows AS o USING (did, collection, rkey) WHERE o.links <> n.links AND o.links <> '{}';
        INSERT INTO pending_counts (subject_did, subject_rkey)
        SELECT n.did, n.rkey FROM new_rows AS n JOIN old_rows AS o USING (did, collection, rkey) WHERE o.links <> n.links;
    ELSE -- shares through a subject that was deleted and stored again count again
        INSERT INTO pending_counts (subject_did, subject_rkey)
        SELECT n.did, n.rkey FROM new_rows AS n
        WHERE n.links <> '{}' AND (SELECT true FROM shares AS s WHERE s.subject_did = n.did AND s.subject_rkey = n.rkey LIMIT 1); -- EXISTS may read all shares: the plan is made when there are few
    END IF;
    RETURN NULL;
END $$;

COMMENT ON FUNCTION record_changed_subjects IS 'Has the shares through a subject counted again, and projected again.';

CREATE TRIGGER subjects_deleted AFTER DELETE ON subjects REFERENCING OLD TABLE AS old_rows FOR EACH STATEMENT EXECUTE FUNCTION record_changed_subjects();
CREATE TRIGGER subjects_updated AFTER UPDATE ON subjects REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION record_changed_subjects();
CREATE TRIGGER subjects_inserted AFTER INSERT ON subjects REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION record_changed_subjects();

CREATE TABLE waiting (
    projection     text COLLATE "C" NOT NULL,
    collection     text COLLATE "C" NOT NULL,
    did            text COLLATE "C" NOT NULL,
    rkey           text COLLATE "C" NOT NULL,
    for_collection text COLLATE "C" NOT NULL,
    for_did        text COLLATE "C" NOT NULL,
    for_rkey       text COLLATE "C" NOT NULL,
    since          timestamptz      NOT NULL DEFAULT now(),
    PRIMARY KEY (did, collection, rkey, projection, for_did, for_collection, for_rkey)
) WITH (autovacuum_vacuum_scale_factor = 0.05);
CREATE INDEX waiting_for ON waiting (for_did, for_collection, for_rkey, projection, did, collection, rkey);
CREATE INDEX waiting_since ON waiting (collection, since);

COMMENT ON TABLE  waiting IS 'Records that a projection cannot use before another record is known, such as reposts of a post that is not stored or shares no link. A row whose record was deleted goes when its turn comes.';
COMMENT ON COLUMN waiting.projection IS 'The projection that waits.';
COMMENT ON COLUMN waiting.for_collection IS 'The collection of the record that it waits for.';
COMMENT ON COLUMN waiting.since IS 'When the record began to wait. It waits as long as its collection is kept, and at most for a week; if too many wait, the oldest go.';
