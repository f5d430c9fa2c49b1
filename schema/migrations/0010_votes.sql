-- Votes: every account that counts for a link votes for a title and a spelling. docs/decisions/headline-votes.md explains them.

ALTER TABLE sharers
    ADD COLUMN title_claim bigint,
    ADD COLUMN title_at    timestamptz,
    ADD COLUMN title_key   text COLLATE "C",
    ADD COLUMN url_claim   bigint,
    ADD COLUMN url_at      timestamptz,
    ADD COLUMN url_key     text COLLATE "C",
    ADD COLUMN voted_at    timestamptz GENERATED ALWAYS AS (least(title_at, url_at)) STORED;
CREATE INDEX sharers_title ON sharers (title_claim, title_at) WHERE title_claim IS NOT NULL;
CREATE INDEX sharers_url ON sharers (url_claim, url_at) WHERE url_claim IS NOT NULL;
CREATE INDEX sharers_voted_at ON sharers (voted_at) WHERE voted_at < at; -- the others leave with their votes

COMMENT ON COLUMN sharers.title_claim IS 'The account''s vote for the headline: the claim of its latest post with a title. NULL: it has none.';
COMMENT ON COLUMN sharers.title_at IS 'Since when: the date of its earliest post with that title.';
COMMENT ON COLUMN sharers.title_key IS 'The collection and rkey of that post.';
COMMENT ON COLUMN sharers.url_claim IS 'The account''s vote for the spelling: the claim of its latest post. NULL: it only reposts and quotes, or names other links that are merged into this one.';
COMMENT ON COLUMN sharers.url_at IS 'Since when: the date of its earliest post with that spelling.';
COMMENT ON COLUMN sharers.url_key IS 'The collection and rkey of that post.';
COMMENT ON COLUMN sharers.voted_at IS 'When this time leaves the longest window, the votes are read again.';

-- What a sharer gives is not a claim: each gives another one.
ALTER TABLE shares ADD COLUMN gift text COLLATE "C" CHECK (octet_length(gift) <= 2048);
CREATE INDEX shares_gift ON shares (link_id, shared_at) WHERE gift IS NOT NULL;

COMMENT ON COLUMN shares.gift IS 'The URL with which the post opens the article for readers who have not paid. NULL: it gives none.';

CREATE TABLE claim_votes (
    claim_id   bigint NOT NULL,
    link_id    bigint NOT NULL,
    titles     int    NOT NULL CHECK (titles >= 0),
    title_at   timestamptz,
    title_from text COLLATE "C",
    urls       int    NOT NULL CHECK (urls >= 0),
    url_at     timestamptz,
    url_from   text COLLATE "C",
    PRIMARY KEY (claim_id, link_id),
    CHECK (titles + urls > 0)
) WITH (autovacuum_vacuum_scale_factor = 0.1, fillfactor = 80);
CREATE INDEX claim_votes_link ON claim_votes (link_id);

COMMENT ON TABLE  claim_votes IS 'How many accounts of a link vote for each claim, as far as they are counted. Claims without votes have no row. Only the counter writes here.';
COMMENT ON COLUMN claim_votes.titles IS 'Votes for the headline.';
COMMENT ON COLUMN claim_votes.title_at IS 'The earliest title_at of these votes in sharers: it decides ties.';
COMMENT ON COLUMN claim_votes.title_from IS 'The AT-URI of that post.';
COMMENT ON COLUMN claim_votes.urls IS 'Votes for the spelling.';
COMMENT ON COLUMN claim_votes.url_at IS 'The earliest url_at of these votes in sharers.';
COMMENT ON COLUMN claim_votes.url_from IS 'The AT-URI of that post.';
