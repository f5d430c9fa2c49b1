-- Shares of several networks: reposts of other records than posts, records that expire at their author's word, and copies of records.

-- Rows from before are of posts: with a default, none is rewritten.
ALTER TABLE shares ADD COLUMN subject_collection text COLLATE "C" DEFAULT 'app.bsky.feed.post', ADD COLUMN copied boolean NOT NULL DEFAULT false;

COMMENT ON COLUMN shares.subject_collection IS 'The collection of the record that is quoted or reposted. Without subject_did it says nothing.';
COMMENT ON COLUMN shares.subject_rkey IS 'The rkey of that record in subject_collection.';
COMMENT ON COLUMN shares.copied IS 'The record is a copy of another one, which the table copies names: it does not count while that one shares the link too.';

CREATE TABLE copies (
    did           text COLLATE "C" NOT NULL,
    collection    text COLLATE "C" NOT NULL,
    rkey          text COLLATE "C" NOT NULL,
    of_did        text COLLATE "C" NOT NULL,
    of_collection text COLLATE "C" NOT NULL,
    of_rkey       text COLLATE "C" NOT NULL,
    checked_at    timestamptz      NOT NULL DEFAULT now(),
    PRIMARY KEY (did, collection, rkey)
) WITH (autovacuum_vacuum_scale_factor = 0.05);
CREATE INDEX copies_of ON copies (of_did, of_collection, of_rkey);
CREATE INDEX copies_checked_at ON copies (checked_at);

COMMENT ON TABLE  copies IS 'Records that share links and are copies of records of another network, made by a bridge. Whether the original is stored does not matter here.';
COMMENT ON COLUMN copies.checked_at IS 'When it was last checked that the record has shares.';

CREATE TABLE expirations (
    did        text COLLATE "C" NOT NULL,
    collection text COLLATE "C" NOT NULL,
    rkey       text COLLATE "C" NOT NULL,
    rev        text COLLATE "C" NOT NULL,
    expires_at timestamptz      NOT NULL,
    PRIMARY KEY (did, collection, rkey)
) WITH (autovacuum_vacuum_scale_factor = 0.05);
CREATE INDEX expirations_expires_at ON expirations (expires_at);

COMMENT ON TABLE  expirations IS 'Revisions of records that their authors let expire. The job check_subjects deletes those that are due, and the row.';
COMMENT ON COLUMN expirations.rev IS 'The latest revision that expires. A newer revision without an expiration stays.';
COMMENT ON COLUMN expirations.expires_at IS 'When it is deleted, by the author''s word.';

-- A copy counts again when its original no longer shares the link. Few records have copies: a lookup for each changed share finds them.
CREATE OR REPLACE FUNCTION record_share_changes() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'INSERT' THEN
        INSERT INTO pending_counts (link_id, did) SELECT DISTINCT a.link_id, a.did FROM added AS a;
        INSERT INTO pending_counts (link_id, did)
        SELECT DISTINCT a.link_id, c.did FROM added AS a
        CROSS JOIN LATERAL (SELECT c.did FROM copies AS c WHERE c.of_did = a.did AND c.of_collection = a.collection AND c.of_rkey = a.rkey OFFSET 0) AS c;
    ELSIF TG_OP = 'DELETE' THEN
        INSERT INTO pending_counts (link_id, did) SELECT DISTINCT r.link_id, r.did FROM removed AS r;
        INSERT INTO pending_counts (link_id, did)
        SELECT DISTINCT r.link_id, c.did FROM removed AS r
        CROSS JOIN LATERAL (SELECT c.did FROM copies AS c WHERE c.of_did = r.did AND c.of_collection = r.collection AND c.of_rkey = r.rkey OFFSET 0) AS c;
    ELSE
        INSERT INTO pending_counts (link_id, did)
        SELECT a.link_id, a.did FROM added AS a UNION SELECT r.link_id, r.did FROM removed AS r;
        INSERT INTO pending_counts (link_id, did)
        SELECT a.link_id, c.did
        FROM (SELECT link_id, did, collection, rkey FROM added UNION SELECT link_id, did, collection, rkey FROM removed) AS a
        CROSS JOIN LATERAL (SELECT c.did FROM copies AS c WHERE c.of_did = a.did AND c.of_collection = a.collection AND c.of_rkey = a.rkey OFFSET 0) AS c;
    END IF;
    RETURN NULL;
END $$;

COMMENT ON FUNCTION record_share_changes IS 'Has the counter look again at the accounts and links of changed shares, and at those of their copies.';

CREATE OR REPLACE VIEW living_shares AS
SELECT s.did        AS did,
       s.collection AS collection,
       s.rkey       AS rkey,
       s.link_id    AS link_id,
       s.named_id   AS named_id,
       s.how        AS how,
       s.shared_at  AS shared_at
FROM shares AS s
WHERE (s.subject_did IS NULL
       OR EXISTS (SELECT FROM subjects AS u
                  WHERE u.did = s.subject_did AND u.collection = s.subject_collection AND u.rkey = s.subject_rkey AND s.named_id = ANY (u.links))
          AND NOT EXISTS (SELECT FROM accounts AS b WHERE b.did = s.subject_did AND b.status <> 'active'))
  AND (NOT s.copied
       OR NOT EXISTS (SELECT FROM copies AS c
                      JOIN shares AS o ON o.did = c.of_did AND o.collection = c.of_collection AND o.rkey = c.of_rkey AND o.link_id = s.link_id
                      WHERE c.did = s.did AND c.collection = s.collection AND c.rkey = s.rkey));

COMMENT ON VIEW living_shares IS 'The shares of posts, those of reposts and quotes whose post still contains the link and has an active author, and those of copies whose original does not share the link. Whether the sharer counts is not considered.';

CREATE OR REPLACE VIEW link_shares AS
SELECT s.link_id                                                                        AS link_id,
       l.url                                                                            AS url,
       s.did                                                                            AS did,
       CASE WHEN coalesce(a.status, 'active') = 'active' THEN a.handle END              AS handle,
       CASE WHEN coalesce(a.status, 'active') = 'active' THEN a.display_name END        AS display_name,
       s.how                                                                            AS how,
       s.shared_at                                                                      AS shared_at,
       'at://' || s.did || '/' || s.collection || '/' || s.rkey                         AS uri,
       'at://' || s.subject_did || '/' || s.subject_collection || '/' || s.subject_rkey AS subject,
       CASE WHEN y.why NOT IN ('hidden', 'subject_hidden') OR y.why IS NULL THEN (
           SELECT coalesce(r.record ->> 'text', r.record ->> 'content') FROM records AS r
           WHERE r.collection = CASE s.how WHEN 'repost' THEN s.subject_collection ELSE s.collection END
             AND r.did = CASE s.how WHEN 'repost' THEN s.subject_did ELSE s.did END
             AND r.rkey = CASE s.how WHEN 'repost' THEN s.subject_rkey ELSE s.rkey END
       ) END                                                                            AS text,
       y.why IS NULL                                                                    AS counts,
       y.why                                                                            AS why,
       n.url                                                                            AS named
FROM shares AS s
JOIN links AS l ON l.id = s.link_id
JOIN links AS n ON n.id = s.named_id
LEFT JOIN accounts AS a ON a.did = s.did
CROSS JOIN LATERAL (
    SELECT CASE
        WHEN a.status <> 'active' THEN 'hidden'
        WHEN EXISTS (SELECT FROM watches) AND NOT EXISTS (SELECT FROM watch_members AS w WHERE w.did = s.did) THEN 'not_followed'
        WHEN EXISTS (SELECT FROM accounts AS b WHERE b.did = s.subject_did AND b.status <> 'active') THEN 'subject_hidden'
        WHEN s.subject_did IS NOT NULL
             AND NOT EXISTS (SELECT FROM subjects AS u
                             WHERE u.did = s.subject_did AND u.collection = s.subject_collection AND u.rkey = s.subject_rkey AND s.named_id = ANY (u.links)) THEN 'subject_gone'
        WHEN s.copied
             AND EXISTS (SELECT FROM copies AS c
                         JOIN shares AS o ON o.did = c.of_did AND o.collection = c.of_collection AND o.rkey = c.of_rkey AND o.link_id = s.link_id
                         WHERE c.did = s.did AND c.collection = s.collection AND c.rkey = s.rkey) THEN 'copy'
        WHEN s.shared_at <= now() - interval '7 days' THEN 'outside_window'
        WHEN EXISTS (SELECT FROM living_shares AS n
                     WHERE n.did = s.did AND n.link_id = s.link_id AND (n.shared_at, n.collection, n.rkey, n.named_id) > (s.shared_at, s.collection, s.rkey, s.named_id)) THEN 'same_person'
    END AS why
) AS y;

COMMENT ON COLUMN link_shares.subject IS 'The AT-URI of the record that is quoted or reposted.';
COMMENT ON COLUMN link_shares.why IS 'Why the share does not count; NULL: it counts. hidden: the account is not active; not_followed: no watch includes it; subject_hidden: the author of the subject is not active; subject_gone: the subject no longer contains the link; copy: the record is a copy of one that shares the link too; outside_window: older than seven days; same_person: the account shared the link again later.';
