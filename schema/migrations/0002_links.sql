-- What the posts share.

CREATE TABLE links (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    url         text COLLATE "C" NOT NULL UNIQUE CHECK (octet_length(url) <= 2048),
    site        text        NOT NULL,
    title       text        NOT NULL DEFAULT '',
    description text        NOT NULL DEFAULT '',
    image       text        NOT NULL DEFAULT '',
    card_from   text        NOT NULL DEFAULT '',
    card_at     timestamptz,
    first_seen  timestamptz NOT NULL
);

COMMENT ON TABLE  links IS 'Every page shared, under its normalised URL, with the card that describes it.';
COMMENT ON COLUMN links.image IS 'blob:<did>/<cid>, the picture a poster uploaded with the card.';
COMMENT ON COLUMN links.card_from IS 'Where the card came from: the AT-URI of a post, or empty while there is none.';
COMMENT ON COLUMN links.card_at IS 'When that post was first stored: the earliest card stays.';

CREATE TABLE shares (
    did        text COLLATE "C" NOT NULL,
    collection text COLLATE "C" NOT NULL,
    rkey       text COLLATE "C" NOT NULL,
    link_id    bigint      NOT NULL REFERENCES links (id) ON DELETE CASCADE,
    how        text        NOT NULL CHECK (how IN ('post', 'quote', 'repost')),
    shared_at  timestamptz NOT NULL,
    PRIMARY KEY (did, collection, rkey, link_id)
);
CREATE INDEX shares_window ON shares (shared_at, link_id, did);
CREATE INDEX shares_link ON shares (link_id, shared_at);

COMMENT ON TABLE  shares IS 'The ledger: who shared which link by which record. Outlives the post''s retention; loses a row only when the share is gone.';
COMMENT ON COLUMN shares.shared_at IS 'The created_at of the record.';
COMMENT ON COLUMN shares.how IS 'post: in a post of its own; quote: in a post that quotes another.';
