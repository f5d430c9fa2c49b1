-- part feeds, after links
-- Feeds: what was published, and the key of its ids. docs/decisions/ranking.md explains them.

CREATE TABLE instance_key (
    one     boolean     PRIMARY KEY DEFAULT true CHECK (one),
    key     bytea       NOT NULL,
    made_at timestamptz NOT NULL DEFAULT now()
);
INSERT INTO instance_key (key) VALUES (uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid()));

COMMENT ON TABLE instance_key IS 'A random key, made once. The ids in feeds are derived from it: with another key, every feed reader would show every link again. Not compared: of the program and its configuration.';

CREATE TABLE feeds (
    id       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    hash     bytea       NOT NULL UNIQUE,
    view     text        NOT NULL,
    usual    boolean     NOT NULL,
    asked_at timestamptz NOT NULL
) WITH (fillfactor = 50);

COMMENT ON TABLE  feeds IS 'Feeds that remember what they published: those whose shares are counted in the same way share a row. One that nobody asks for makes room for others. Not compared: what readers asked for.';
COMMENT ON COLUMN feeds.hash IS 'Of the view, which may be too long for an index.';
COMMENT ON COLUMN feeds.view IS 'Whose shares count, of which kind, and how many a link needs.';
COMMENT ON COLUMN feeds.usual IS 'It differs from others by its watch only. There are as many of these as watches; the number of the others is limited.';
COMMENT ON COLUMN feeds.asked_at IS 'When it was last computed.';

CREATE TABLE feed_entries (
    feed_id    bigint      NOT NULL REFERENCES feeds (id) ON DELETE CASCADE,
    link_id    bigint      NOT NULL,
    reached_at timestamptz NOT NULL,
    PRIMARY KEY (feed_id, link_id)
);

COMMENT ON TABLE  feed_entries IS 'The links that a feed has published: the newest 2,000. They keep their ids and dates whatever is deleted or merged afterwards. Not compared: what readers asked for.';
COMMENT ON COLUMN feed_entries.link_id IS 'The link whose id readers have seen. It may be merged into another since, or have expired.';
COMMENT ON COLUMN feed_entries.reached_at IS 'The date of the share with which the link reached the minimum.';
