-- part links
-- Links: what the posts share, which links count as one, what their pages say, and since when nobody shares a link.

-- For the filter by text, which finds trigrams of addresses and the words of cards and posts. docs/decisions/ranking.md explains it.
CREATE EXTENSION IF NOT EXISTS pg_trgm;

-- The counter soon gives a new link its headline. In the space that the fillfactor leaves, the row needs no new entries in the indexes.
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
) WITH (autovacuum_vacuum_scale_factor = 0.1, fillfactor = 60);

CREATE INDEX links_merged_into ON links (merged_into) WHERE merged_into IS NOT NULL;
CREATE INDEX links_site ON links (site);
-- Links whose path ends with the name of an article: several links of a site with one name may be variants of one address.
CREATE INDEX links_page ON links (substring(split_part(identity, '?', 1) FROM '[^/]*$'), site)
    WHERE substring(split_part(identity, '?', 1) FROM '[^/]*$') ~ '[0-9]{5}|[^-]-[^-]+-[^-]+-[^-]';
CREATE INDEX links_address ON links USING gin (identity gin_trgm_ops) WITH (gin_pending_list_limit = 1024);
-- A search with many matches looks up here which of their links are merged: few are. The condition is one that no other statement has: with
-- merged_into IS NOT NULL, those that look for the links merged into one might read this index whole.
CREATE INDEX links_merged ON links (id) INCLUDE (counts_as) WHERE counts_as <> id;

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
    words       tsvector NOT NULL DEFAULT '',
    title_key   text COLLATE "C" NOT NULL DEFAULT '',
    title_group bigint,
    UNIQUE (link_id, hash)
) WITH (autovacuum_vacuum_scale_factor = 0.1);
CREATE INDEX claims_title_group ON claims (title_group) WHERE title_group IS NOT NULL; -- an old one may keep a card
CREATE INDEX claims_words ON claims USING gin (words) WITH (gin_pending_list_limit = 1024);

COMMENT ON TABLE  claims IS 'What sharers say about a link: a spelling, and a card if their post has one. Those who say the same share one row. Not compared: counted from shares, which `weir recount --check` does.';
COMMENT ON COLUMN claims.hash IS 'Of the spelling, title, description and image. Texts may be too long for an index.';
COMMENT ON COLUMN claims.site IS 'The host of the spelling, as the page shows it.';
COMMENT ON COLUMN claims.image IS 'The CID of the picture: the same for all accounts that uploaded it.';
COMMENT ON COLUMN claims.words IS 'The words of the title, the description and the address. Workers make them: Postgres'' parser depends on the locale.';
COMMENT ON COLUMN claims.title_key IS 'The title in the form in which titles are compared: folded, with a line feed before what may be the name of the site, and … at the end if it was cut.';
COMMENT ON COLUMN claims.title_group IS 'A hash of the site and the title: pages of a site with one title have the same. NULL: there is none to compare, or the address is the front page or that of a shortener.';

CREATE TABLE shares (
    did                text COLLATE "C" NOT NULL,
    collection         text COLLATE "C" NOT NULL,
    rkey               text COLLATE "C" NOT NULL,
    link_id            bigint      NOT NULL,
    named_id           bigint      NOT NULL,
    how                text        NOT NULL CHECK (how IN ('post', 'quote', 'repost')),
    shared_at          timestamptz NOT NULL,
    stored_at          timestamptz NOT NULL DEFAULT now(),
    claim_id           bigint,
    subject_did        text COLLATE "C",
    subject_rkey       text COLLATE "C",
    -- What a sharer gives is not a claim: each gives another one.
    gift               text COLLATE "C" CHECK (octet_length(gift) <= 2048),
    words              tsvector,
    subject_collection text COLLATE "C" DEFAULT 'app.bsky.feed.post',
    copied             boolean     NOT NULL DEFAULT false,
    PRIMARY KEY (did, collection, rkey, named_id),
    FOREIGN KEY (named_id, link_id) REFERENCES links (id, counts_as) ON UPDATE CASCADE
) PARTITION BY RANGE (rkey);
CREATE TABLE shares_default PARTITION OF shares DEFAULT WITH (autovacuum_vacuum_scale_factor = 0.05);
CREATE INDEX shares_window ON shares (shared_at, link_id);
CREATE INDEX shares_link ON shares (link_id, shared_at);
CREATE INDEX shares_default_stored_at ON shares_default (stored_at);
-- It begins with the link: of two indexes that begin with the account, Postgres may take this one to find a record, and read all that a busy
-- account shares.
CREATE INDEX shares_sharer ON shares (link_id, did);
CREATE INDEX shares_subject ON shares (subject_did, subject_rkey, did, collection, rkey) WHERE subject_did IS NOT NULL;
CREATE INDEX shares_gift ON shares (link_id, shared_at) WHERE gift IS NOT NULL;
CREATE INDEX shares_words ON shares USING gin (words) WITH (gin_pending_list_limit = 1024) WHERE words IS NOT NULL;
CREATE INDEX shares_nostr ON shares (link_id, shared_at) WHERE did LIKE 'did:nostr:%';

COMMENT ON TABLE  shares IS 'Who shared which link by which record: a post that contains it, or a repost or quote of such a post. A share outlives its record''s retention, and goes only when the author takes it back or the link expires. A share through a subject counts only while subjects names the link and the subject''s author is active.';
COMMENT ON TABLE  shares_default IS 'Shares whose rkey is not a TID, or is a TID of a time before the partitions. They expire by stored_at.';
COMMENT ON COLUMN shares.link_id IS 'The link for which the share counts.';
COMMENT ON COLUMN shares.named_id IS 'The link that the record names. Another one than link_id if it is merged into that: the foreign key keeps both in step.';
COMMENT ON COLUMN shares.how IS 'post: the record itself contains the link; quote: it quotes a post that contains it; repost: it reposts one.';
COMMENT ON COLUMN shares.shared_at IS 'The created_at of the record.';
COMMENT ON COLUMN shares.stored_at IS 'When the record was first stored, by the database''s clock.';
COMMENT ON COLUMN shares.claim_id IS 'What the record says about the link. NULL: nothing, because the record only reposts or quotes a post that contains the link.';
COMMENT ON COLUMN shares.subject_did IS 'The author of the post that is quoted or reposted. NULL: the record itself contains the link.';
COMMENT ON COLUMN shares.subject_rkey IS 'The rkey of that record in subject_collection.';
COMMENT ON COLUMN shares.gift IS 'The URL with which the post opens the article for readers who have not paid. NULL: it gives none.';
COMMENT ON COLUMN shares.words IS 'The words of the post that the sharer wrote. NULL: none, or a repost. They are searched while the post is stored.';
COMMENT ON COLUMN shares.subject_collection IS 'The collection of the record that is quoted or reposted. Without subject_did it says nothing.';
COMMENT ON COLUMN shares.copied IS 'The record is a copy of another one, which the table copies names: it does not count while that one shares the link too.';

CREATE TABLE leaving_links (
    part    oid         NOT NULL,
    link_id bigint      NOT NULL,
    sharers int         NOT NULL,
    counted timestamptz NOT NULL,
    PRIMARY KEY (part, link_id)
);

COMMENT ON TABLE leaving_links IS 'Links of a partition of shares that expiry is about to drop, if enough accounts share them to keep them. Once the partition is gone, they are marked in links. Not compared: counted from shares, which `weir recount --check` does.';
COMMENT ON COLUMN leaving_links.part IS 'The partition. Its name could be used again.';

CREATE TABLE unshared_links (
    link_id bigint      PRIMARY KEY,
    since   timestamptz NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0.1);
CREATE INDEX unshared_links_since ON unshared_links (since);

COMMENT ON TABLE unshared_links IS 'Links without a share since expiry noticed it. They are deleted after a day of grace, unless somebody shares them again. Not compared: counted from shares, which `weir recount --check` does.';

-- Reposts and quotes: shares through another record.

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

COMMENT ON TABLE  subjects IS 'Posts that are reposted or quoted, with the links they share. A deletion removes the row in the transaction that brings it: then no share through the post counts. Not compared: what servers said, who are asked again.';
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

COMMENT ON TABLE changed_subjects IS 'Subjects that were deleted or have other links than before. The job check_subjects projects their reposts and quotes again, and removes the row. Not compared: counted from shares, which `weir recount --check` does.';

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

-- Copies: records that a bridge made of records of another network.

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
CREATE INDEX copies_checked_at ON copies (checked_at);
CREATE INDEX copies_of ON copies (of_did, of_rkey, of_collection);

COMMENT ON TABLE  copies IS 'Records that share links and are copies of records of another network, made by a bridge. Whether the original is stored does not matter here. Not compared: made from records, which are compared.';
COMMENT ON COLUMN copies.checked_at IS 'When it was last checked that the record has shares.';

-- Merges: links of which a redirect, or a person, says that they are one. docs/decisions/links.md explains them.

CREATE TABLE link_merges (
    link_id   bigint      PRIMARY KEY REFERENCES links (id) ON DELETE CASCADE,
    into_id   bigint      NOT NULL REFERENCES links (id) ON DELETE CASCADE CHECK (into_id <> link_id),
    why       text        NOT NULL CHECK (why IN ('redirect', 'canonical', 'by hand')),
    merged_at timestamptz NOT NULL,
    split_at  timestamptz
);
CREATE INDEX link_merges_into ON link_merges (into_id);

COMMENT ON TABLE  link_merges IS 'Which links were merged into which, when and why. A link may be merged into one that is merged itself: links.merged_into is the last of them.';
COMMENT ON COLUMN link_merges.why IS 'redirect: its redirects lead to the other; canonical: its page calls the other its own address; by hand: by weir link merge.';
COMMENT ON COLUMN link_merges.split_at IS 'When the merge was undone: by weir link split, or because more than three links of a host ended there. Only a person merges the link again. NULL: it is in force.';

CREATE TABLE short_links (
    link_id    bigint      PRIMARY KEY REFERENCES links (id) ON DELETE CASCADE,
    resolve_at timestamptz,
    tries      int         NOT NULL DEFAULT 0,
    outcome    text        NOT NULL DEFAULT '',
    guess      boolean     NOT NULL DEFAULT false
) WITH (autovacuum_vacuum_scale_factor = 0.1);
CREATE INDEX short_links_resolve_at ON short_links (resolve_at) WHERE resolve_at IS NOT NULL;

COMMENT ON TABLE  short_links IS 'Links of shorteners, and those that look like one. The job resolve_links asks where they lead. Not compared: what servers said, who are asked again.';
COMMENT ON COLUMN short_links.resolve_at IS 'When the shortener is asked next. NULL: never again, because it has answered or did not several times.';
COMMENT ON COLUMN short_links.tries IS 'How often it was asked in vain.';
COMMENT ON COLUMN short_links.outcome IS 'Where the link leads, or why that is not known.';

COMMENT ON COLUMN short_links.guess IS 'The link looks like a short one, but its site is not known as a shortener.';

CREATE TABLE shorteners (
    site     text        PRIMARY KEY,
    asked    int         NOT NULL,
    asked_at timestamptz NOT NULL,
    targets  text[]      NOT NULL,
    shortener_since timestamptz
);

COMMENT ON TABLE  shorteners IS 'Sites whose links look like short ones, and no rule says so. Of each, a few links are asked. Not compared: what servers said, who are asked again.';
COMMENT ON COLUMN shorteners.asked IS 'How many links were asked; from a few on, no more of them for a month.';
COMMENT ON COLUMN shorteners.targets IS 'The identities of the links of other sites to which they lead, each once.';
COMMENT ON COLUMN shorteners.shortener_since IS 'Since when the site counts as a shortener: three links led to three links of other sites. NULL: it does not.';

CREATE TABLE paused_shorteners (
    site  text        PRIMARY KEY,
    until timestamptz NOT NULL
);

COMMENT ON TABLE  paused_shorteners IS 'Until when a shortener wants to be left alone. New links of it wait as long; those that were due have been put off. Not compared: what servers said, who are asked again.';

-- Cards: what the pages of links say about themselves. docs/decisions/links.md explains them.

CREATE TABLE cards (
    link_id     bigint      PRIMARY KEY REFERENCES links (id) ON DELETE CASCADE,
    sharers     smallint    NOT NULL CHECK (sharers IN (1, 2, 5)),
    fetch_at    timestamptz,
    tries       int         NOT NULL DEFAULT 0,
    fetched_at  timestamptz,
    status      text        NOT NULL DEFAULT '',
    host        text COLLATE "C" NOT NULL DEFAULT '',
    address     text COLLATE "C" NOT NULL DEFAULT '',
    ends_at     text COLLATE "C" NOT NULL DEFAULT '' CHECK (octet_length(ends_at) <= 2048),
    canonical   text COLLATE "C" NOT NULL DEFAULT '' CHECK (octet_length(canonical) <= 2048),
    same_site   boolean     NOT NULL DEFAULT false,
    title       text COLLATE "C" NOT NULL DEFAULT '',
    description text COLLATE "C" NOT NULL DEFAULT '',
    site_name   text COLLATE "C" NOT NULL DEFAULT '',
    words       tsvector    NOT NULL DEFAULT '',
    title_group bigint
) WITH (autovacuum_vacuum_scale_factor = 0.1);
CREATE INDEX cards_due ON cards (sharers, fetch_at) WHERE fetch_at IS NOT NULL;
CREATE INDEX cards_ends_at ON cards (ends_at, host) WHERE ends_at <> '';
CREATE INDEX cards_canonical ON cards (canonical, host) WHERE canonical <> '';
CREATE INDEX cards_title_group ON cards (title_group) WHERE title_group IS NOT NULL;
CREATE INDEX cards_words ON cards USING gin (words) WITH (gin_pending_list_limit = 1024);

COMMENT ON TABLE  cards IS 'Links whose page is fetched, and what the page says about itself. The counter adds the row; the job fetch_card fetches the page. Not compared: what servers said, who are asked again.';
COMMENT ON COLUMN cards.sharers IS 'How many sharers have it fetched: 5, whatever titles they give; 2, if none gives a title or there are variants of the link; 1, if there are.';
COMMENT ON COLUMN cards.fetch_at IS 'When the page is fetched next. NULL: never again.';
COMMENT ON COLUMN cards.tries IS 'How often a fetch was started: at most four times.';
COMMENT ON COLUMN cards.fetched_at IS 'When the last fetch ended. NULL: none has yet.';
COMMENT ON COLUMN cards.status IS 'Why the title of the page does not count. Empty: it counts if same_site is true, or the link was merged because of the page.';
COMMENT ON COLUMN cards.host IS 'The host that was asked, without "www.".';
COMMENT ON COLUMN cards.address IS 'Where the redirects ended.';
COMMENT ON COLUMN cards.ends_at IS 'The identity of that address. Empty: it is not known, or no link.';
COMMENT ON COLUMN cards.canonical IS 'The identity of the address that the page calls its own, in its registrable domain. Empty: none.';
COMMENT ON COLUMN cards.same_site IS 'The redirects ended in the registrable domain in which they began.';
COMMENT ON COLUMN cards.words IS 'The words of the title and the description.';
COMMENT ON COLUMN cards.title_group IS 'That of the title, as in claims.';

CREATE TABLE card_fetches (
    id         bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    link_id    bigint      NOT NULL,
    started_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    ended_at   timestamptz
);

COMMENT ON TABLE  card_fetches IS 'The fetches of pages that were started in the last hour: at most 1,000, over all processes. Not compared: what servers said, who are asked again.';
COMMENT ON COLUMN card_fetches.link_id IS 'The link. It may have expired.';
COMMENT ON COLUMN card_fetches.ended_at IS 'NULL: it is running, or its process died. After a minute nobody waits for it.';

CREATE TABLE card_hosts (
    host    text COLLATE "C" PRIMARY KEY,
    next_at timestamptz      NOT NULL
);

COMMENT ON TABLE  card_hosts IS 'When the next request to a host may start, over all processes. Hosts that nobody asks have no row. Not compared: what servers said, who are asked again.';
