-- The counts of the accounts of Nostr, kept beside those of all accounts. docs/decisions/counts.md explains them.

CREATE TABLE nostr_counts (LIKE link_counts INCLUDING ALL);
ALTER TABLE nostr_counts SET (autovacuum_vacuum_scale_factor = 0.1, fillfactor = 70);

COMMENT ON TABLE  nostr_counts IS 'What link_counts is, of the accounts of Nostr alone. A link that one of them shares has no row. Only the counter writes here.';

CREATE INDEX sharers_nostr_link ON sharers (link_id, at) WHERE did LIKE 'did:nostr:%';
CREATE INDEX sharers_nostr_at ON sharers (at) WHERE did LIKE 'did:nostr:%';
CREATE INDEX shares_nostr ON shares (link_id, shared_at) WHERE did LIKE 'did:nostr:%';

-- Whoever has counted accounts of Nostr before has no counts of them alone.
INSERT INTO pending_counts (link_id, did)
SELECT NULL, NULL WHERE EXISTS (SELECT FROM sharers WHERE did LIKE 'did:nostr:%');
