-- Listed records under a revision of their own, accounts that nothing needs any more, dead letters without what was deleted.

-- A listed post had its rkey as its revision. The author's client chooses the rkey: where that client's clock was ahead, the stream's deletions
-- were older than the post. No repository commits under a revision that equals the record's own rkey: so rev = rkey is a listed post.
--
-- Those that a deletion has already missed go now, with their shares.
WITH missed AS (
    DELETE FROM records AS r USING tombstones AS t
    WHERE t.collection = r.collection AND t.did = r.did AND t.rkey = r.rkey AND r.rev = r.rkey
    RETURNING r.collection, r.did, r.rkey
)
DELETE FROM shares AS s USING missed AS m
WHERE s.collection = m.collection AND s.did = m.did AND s.rkey = m.rkey;

-- Of the others, only rkeys later than the next deletion can do harm: the rest stay as they are, so that this reads the newest posts and not all.
DO $$
DECLARE
    next text := tid_floor(least(now(), (SELECT min(last_event_at) FROM streams)) - interval '1 hour');
BEGIN
    UPDATE records SET rev = '2222222222222'
    WHERE collection = 'app.bsky.feed.post' AND rkey >= next AND rkey < 'k' AND length(rkey) = 13 AND rev = rkey;
END $$;

COMMENT ON COLUMN records.rev IS 'The revision of the repository that wrote it: a TID, sorts by time. 2222222222222, the smallest, where a listing brought it: listings do not name revisions.';

-- An account's row is looked at again when its time comes, and goes when nothing needs it.
ALTER TABLE accounts ADD COLUMN check_at timestamptz NOT NULL DEFAULT now();
ALTER TABLE accounts ALTER COLUMN check_at SET DEFAULT now() + interval '1 day';
CREATE INDEX accounts_check ON accounts (check_at);

COMMENT ON TABLE  accounts IS 'Accounts that are followed, that something is stored of, or that are not active. An account without a row is active.';
COMMENT ON COLUMN accounts.check_at IS 'When expiry next looks whether anything needs this row.';

CREATE INDEX dead_letters_record ON dead_letters (did, collection, rkey) WHERE did IS NOT NULL;

UPDATE dead_letters AS d SET raw = '', raw_bytes = 0, expected = '', received = '', last_cause = ''
WHERE d.did IS NOT NULL AND d.stage <> 'job'
  AND (EXISTS (SELECT FROM tombstones AS t WHERE t.collection = d.collection AND t.did = d.did AND t.rkey = d.rkey)
       OR EXISTS (SELECT FROM accounts AS a WHERE a.did = d.did AND a.status = 'deleted'));

COMMENT ON COLUMN dead_letters.raw IS 'The input as it came, of a job its arguments; its first megabyte where raw_bytes is larger; empty once its record or account is deleted.';
