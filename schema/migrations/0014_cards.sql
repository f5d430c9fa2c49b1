-- Cards: what the pages of links say about themselves. docs/decisions/cards.md explains them.

CREATE TABLE cards (
    link_id     bigint      PRIMARY KEY REFERENCES links (id) ON DELETE CASCADE,
    sharers     smallint    NOT NULL CHECK (sharers IN (2, 5)),
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
    words       tsvector    NOT NULL DEFAULT ''
) WITH (autovacuum_vacuum_scale_factor = 0.1);
CREATE INDEX cards_due ON cards (sharers, fetch_at) WHERE fetch_at IS NOT NULL;
CREATE INDEX cards_ends_at ON cards (ends_at, host) WHERE ends_at <> '';
CREATE INDEX cards_canonical ON cards (canonical, host) WHERE canonical <> '';
CREATE INDEX cards_title ON cards (title, host) WHERE title <> '';
CREATE INDEX cards_words ON cards USING gin (words) WITH (gin_pending_list_limit = 1024);

COMMENT ON TABLE  cards IS 'Links whose page is fetched, and what the page says about itself. The counter adds the row; the job fetch_card fetches the page.';
COMMENT ON COLUMN cards.sharers IS 'Why it is fetched: 2, no post of its two or more sharers has a title; 5, it has five sharers.';
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

CREATE TABLE card_fetches (
    id         bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    link_id    bigint      NOT NULL,
    started_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    ended_at   timestamptz
);

COMMENT ON TABLE  card_fetches IS 'The fetches of pages that were started in the last hour: at most 1,000, over all processes.';
COMMENT ON COLUMN card_fetches.link_id IS 'The link. It may have expired.';
COMMENT ON COLUMN card_fetches.ended_at IS 'NULL: it is running, or its process died. After a minute nobody waits for it.';

CREATE TABLE card_hosts (
    host    text COLLATE "C" PRIMARY KEY,
    next_at timestamptz      NOT NULL
);

COMMENT ON TABLE  card_hosts IS 'When the next request to a host may start, over all processes. Hosts that nobody asks have no row.';
