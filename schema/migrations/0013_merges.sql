-- Merges: links of which a redirect, or a person, says that they are one. docs/decisions/merged-links.md explains them.

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
    answer     text        NOT NULL DEFAULT ''
) WITH (autovacuum_vacuum_scale_factor = 0.1);
CREATE INDEX short_links_resolve_at ON short_links (resolve_at) WHERE resolve_at IS NOT NULL;

COMMENT ON TABLE  short_links IS 'Links of known shorteners. The job resolve_links asks where they lead.';
COMMENT ON COLUMN short_links.resolve_at IS 'When the shortener is asked next. NULL: never again, because it has answered or did not several times.';
CREATE TABLE paused_shorteners (
    site  text        PRIMARY KEY,
    until timestamptz NOT NULL
);

COMMENT ON TABLE  paused_shorteners IS 'Until when a shortener wants to be left alone. New links of it wait as long; those that were due have been put off.';

COMMENT ON COLUMN short_links.tries IS 'How often it was asked in vain.';
COMMENT ON COLUMN short_links.answer IS 'Where the link leads, or why that is not known.';
