-- Links: what the posts share, and since when nobody shares it.

CREATE TABLE links (
    id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    identity     text COLLATE "C" NOT NULL UNIQUE CHECK (octet_length(identity) <= 2048),
    url          text COLLATE "C" NOT NULL CHECK (octet_length(url) <= 2048),
    site         text        NOT NULL,
    title        text        NOT NULL DEFAULT '',
    description  text        NOT NULL DEFAULT '',
    image        text        NOT NULL DEFAULT '',
    card_from    text        NOT NULL DEFAULT '',
    first_seen   timestamptz NOT NULL,
    kept_sharers int         CHECK (kept_sharers > 0),
    kept_at      timestamptz,
    merged_into  bigint      REFERENCES links (id) ON DELETE CASCADE CHECK (merged_into <> id),
    counts_as    bigint      NOT NULL GENERATED ALWAYS AS (coalesce(merged_into, id)) STORED,
    CHECK ((kept_sharers IS NULL) = (kept_at IS NULL)),
    UNIQUE (id, counts_as)
) WITH (autovacuum_vacuum_scale_factor = 0.1);

CREATE INDEX links_merged_into ON links (merged_into) WHERE merged_into IS NOT NULL;

COMMENT ON TABLE  links IS 'Every shared article, under its identity, with the spelling and the card that most sharers give. Workers add the row; the counter writes the spelling and the card.';
COMMENT ON COLUMN links.identity IS 'The same for all spellings of one article. It is no URL.';
COMMENT ON COLUMN links.url IS 'The spelling that is shown: a normalised URL.';
COMMENT ON COLUMN links.site IS 'The host of that URL, as the page shows it.';
COMMENT ON COLUMN links.image IS 'blob:<did>/<cid>, the picture that a poster uploaded with the card.';
COMMENT ON COLUMN links.card_from IS 'Where the title is from: the AT-URI of a post, or the address of the page itself. Empty: there is no card.';
COMMENT ON COLUMN links.kept_sharers IS 'The largest number of accounts that shared it when some of its shares expired, if they were enough to keep the link. NULL: they never were.';
COMMENT ON COLUMN links.kept_at IS 'When that last happened. The link stays for the retention of links since then, also without shares.';
COMMENT ON COLUMN links.merged_into IS 'The link that counts in place of this one, as link_merges says. It is merged into none itself. NULL: this link counts itself.';
COMMENT ON COLUMN links.counts_as IS 'The link under which the shares of this one count: merged_into, or the link itself.';

CREATE TABLE claims (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    link_id     bigint NOT NULL REFERENCES links (id) ON DELETE CASCADE,
    hash        bytea  NOT NULL,
    url         text COLLATE "C" NOT NULL,
    site        text   NOT NULL,
    title       text COLLATE "C" NOT NULL DEFAULT '',
    description text COLLATE "C" NOT NULL DEFAULT '',
    image       text COLLATE "C" NOT NULL DEFAULT '',
    UNIQUE (link_id, hash)
) WITH (autovacuum_vacuum_scale_factor = 0.1);

COMMENT ON TABLE  claims IS 'What sharers say about a link: a spelling, and a card if their post has one. Those who say the same share one row.';
COMMENT ON COLUMN claims.hash IS 'Of the spelling, title, description and image. Texts may be too long for an index.';
COMMENT ON COLUMN claims.site IS 'The host of the spelling, as the page shows it.';
COMMENT ON COLUMN claims.image IS 'The CID of the picture: the same for all accounts that uploaded it.';

CREATE TABLE shares (
    did        text COLLATE "C" NOT NULL,
    collection text COLLATE "C" NOT NULL,
    rkey       text COLLATE "C" NOT NULL,
    link_id    bigint      NOT NULL,
    named_id   bigint      NOT NULL,
    how        text        NOT NULL CHECK (how IN ('post', 'quote', 'repost')),
    shared_at  timestamptz NOT NULL,
    stored_at  timestamptz NOT NULL DEFAULT now(),
    claim_id   bigint,
    PRIMARY KEY (did, collection, rkey, named_id),
    FOREIGN KEY (named_id, link_id) REFERENCES links (id, counts_as) ON UPDATE CASCADE
) PARTITION BY RANGE (rkey);
CREATE TABLE shares_default PARTITION OF shares DEFAULT WITH (autovacuum_vacuum_scale_factor = 0.05);
CREATE INDEX shares_window ON shares (shared_at, link_id, did);
CREATE INDEX shares_link ON shares (link_id, shared_at);
CREATE INDEX shares_default_stored_at ON shares_default (stored_at);

COMMENT ON TABLE  shares IS 'The ledger: who shared which link in which record. Partitioned by rkey, which is a TID and sorts by time: a day each, as the view partitions lists. A share outlives its post''s retention, and goes when the author takes it back or its day expires.';
COMMENT ON TABLE  shares_default IS 'Shares whose rkey is not a TID, or is a TID of a time before the partitions. They expire by stored_at.';
COMMENT ON COLUMN shares.link_id IS 'The link for which the share counts.';
COMMENT ON COLUMN shares.named_id IS 'The link that the record names. Another one than link_id if it is merged into that: the foreign key keeps both in step.';
COMMENT ON COLUMN shares.how IS 'post: in a post of its own; quote: in a post that quotes another.';
COMMENT ON COLUMN shares.shared_at IS 'The created_at of the record.';
COMMENT ON COLUMN shares.stored_at IS 'When the record was first stored, by the database''s clock.';
COMMENT ON COLUMN shares.claim_id IS 'What the record says about the link. NULL: nothing, because the record only reposts or quotes a post that contains the link.';

CREATE TABLE leaving_links (
    part    oid         NOT NULL,
    link_id bigint      NOT NULL,
    sharers int         NOT NULL,
    counted timestamptz NOT NULL,
    PRIMARY KEY (part, link_id)
);

COMMENT ON TABLE leaving_links IS 'Links of a partition of shares that expiry is about to drop, if enough accounts share them to keep them. Once the partition is gone, they are marked in links.';
COMMENT ON COLUMN leaving_links.part IS 'The partition. Its name could be used again.';

CREATE TABLE unshared_links (
    link_id bigint      PRIMARY KEY,
    since   timestamptz NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0.1);
CREATE INDEX unshared_links_since ON unshared_links (since);

COMMENT ON TABLE unshared_links IS 'Links without a share since expiry noticed it. They are deleted after a day of grace, unless somebody shares them again.';
