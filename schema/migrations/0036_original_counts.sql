-- A share of an original writes one row for the counter, however many records say that they are copies of it.

DROP INDEX copies_of;
CREATE INDEX copies_of ON copies (of_did, of_rkey, of_collection);

CREATE OR REPLACE FUNCTION record_share_changes() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    -- A scalar subquery with LIMIT, as EXISTS may read all copies: the plan is made when there are few.
    IF TG_OP = 'INSERT' THEN
        INSERT INTO pending_counts (link_id, did) SELECT DISTINCT a.link_id, a.did FROM added AS a;
        INSERT INTO pending_counts (subject_did, subject_rkey)
        SELECT DISTINCT a.did, a.rkey FROM added AS a
        WHERE (SELECT true FROM copies AS c WHERE c.of_did = a.did AND c.of_rkey = a.rkey AND c.of_collection = a.collection LIMIT 1);
    ELSIF TG_OP = 'DELETE' THEN
        INSERT INTO pending_counts (link_id, did) SELECT DISTINCT r.link_id, r.did FROM removed AS r;
        INSERT INTO pending_counts (subject_did, subject_rkey)
        SELECT DISTINCT r.did, r.rkey FROM removed AS r
        WHERE (SELECT true FROM copies AS c WHERE c.of_did = r.did AND c.of_rkey = r.rkey AND c.of_collection = r.collection LIMIT 1);
    ELSE
        INSERT INTO pending_counts (link_id, did)
        SELECT a.link_id, a.did FROM added AS a UNION SELECT r.link_id, r.did FROM removed AS r;
        INSERT INTO pending_counts (subject_did, subject_rkey)
        SELECT DISTINCT a.did, a.rkey
        FROM (SELECT did, collection, rkey FROM added UNION SELECT did, collection, rkey FROM removed) AS a
        WHERE (SELECT true FROM copies AS c WHERE c.of_did = a.did AND c.of_rkey = a.rkey AND c.of_collection = a.collection LIMIT 1);
    END IF;
    RETURN NULL;
END $$;

COMMENT ON FUNCTION record_share_changes IS 'Has the counter look again at the accounts and links of changed shares, and at their copies.';
COMMENT ON COLUMN pending_counts.subject_did IS 'The author of a record, named with subject_rkey, that others repost, quote or copy: what they share through it, and the shares of its copies, may count again, or no longer.';
