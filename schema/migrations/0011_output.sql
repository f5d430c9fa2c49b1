-- Output: what people read in psql, and which links were announced.

CREATE VIEW living_shares AS
SELECT s.did        AS did,
       s.collection AS collection,
       s.rkey       AS rkey,
       s.link_id    AS link_id,
       s.named_id   AS named_id,
       s.how        AS how,
       s.shared_at  AS shared_at
FROM shares AS s
WHERE s.subject_did IS NULL
   OR EXISTS (SELECT FROM subjects AS u
              WHERE u.did = s.subject_did AND u.collection = 'app.bsky.feed.post' AND u.rkey = s.subject_rkey AND s.named_id = ANY (u.links))
      AND NOT EXISTS (SELECT FROM accounts AS b WHERE b.did = s.subject_did AND b.status <> 'active');

COMMENT ON VIEW living_shares IS 'The shares of posts, and those of reposts and quotes whose post still contains the link and has an active author. Whether the sharer counts is not considered.';

CREATE FUNCTION trending(span interval DEFAULT '6 hours', watch text DEFAULT NULL)
RETURNS TABLE (link_id bigint, url text, site text, title text, sharers bigint, shares bigint, first_shared timestamptz, last_shared timestamptz)
LANGUAGE sql STABLE ROWS 1000 AS $$
    WITH counted AS (
        SELECT s.link_id, s.did, count(*) AS shares, min(s.shared_at) AS first_shared, max(s.shared_at) AS last_shared
        FROM living_shares AS s
        WHERE s.shared_at > now() - span
          AND NOT EXISTS (SELECT FROM accounts AS a WHERE a.did = s.did AND a.status <> 'active')
          AND (NOT EXISTS (SELECT FROM watches) AND trending.watch IS NULL
               OR EXISTS (SELECT FROM watch_members AS m JOIN watches AS w ON w.id = m.watch_id
                          WHERE m.did = s.did AND w.target = coalesce(trending.watch, w.target)))
        GROUP BY s.link_id, s.did
    )
    SELECT l.id, l.url, l.site, l.title, count(*), sum(c.shares)::bigint, min(c.first_shared), max(c.last_shared)
    FROM counted AS c
    JOIN links AS l ON l.id = c.link_id
    GROUP BY l.id
    ORDER BY count(*) DESC, max(c.last_shared) DESC, l.id DESC
$$;

COMMENT ON FUNCTION trending IS 'The links shared within a span of time such as ''24h'', the most sharers first; for everyone, or for the accounts that the watches of a target include. Counted from the shares, as exactly as the API: with millions of them that takes seconds. Titles and spellings are as last counted, a second or two ago.';

CREATE VIEW link_shares AS
SELECT s.link_id                                                                        AS link_id,
       l.url                                                                            AS url,
       s.did                                                                            AS did,
       CASE WHEN coalesce(a.status, 'active') = 'active' THEN a.handle END              AS handle,
       CASE WHEN coalesce(a.status, 'active') = 'active' THEN a.display_name END        AS display_name,
       s.how                                                                            AS how,
       s.shared_at                                                                      AS shared_at,
       'at://' || s.did || '/' || s.collection || '/' || s.rkey                         AS uri,
       'at://' || s.subject_did || '/app.bsky.feed.post/' || s.subject_rkey             AS subject,
       CASE WHEN y.why NOT IN ('hidden', 'subject_hidden') OR y.why IS NULL THEN (
           SELECT p.record ->> 'text' FROM posts AS p
           WHERE p.collection = 'app.bsky.feed.post' AND p.did = CASE s.how WHEN 'repost' THEN s.subject_did ELSE s.did END
             AND p.rkey = CASE s.how WHEN 'repost' THEN s.subject_rkey ELSE s.rkey END
       ) END                                                                            AS text,
       y.why IS NULL                                                                    AS counts,
       y.why                                                                            AS why,
       n.url                                                                            AS named
FROM shares AS s
JOIN links AS l ON l.id = s.link_id
JOIN links AS n ON n.id = s.named_id
LEFT JOIN accounts AS a ON a.did = s.did
CROSS JOIN LATERAL (
    SELECT CASE
        WHEN a.status <> 'active' THEN 'hidden'
        WHEN EXISTS (SELECT FROM watches) AND NOT EXISTS (SELECT FROM watch_members AS w WHERE w.did = s.did) THEN 'not_followed'
        WHEN EXISTS (SELECT FROM accounts AS b WHERE b.did = s.subject_did AND b.status <> 'active') THEN 'subject_hidden'
        WHEN s.subject_did IS NOT NULL
             AND NOT EXISTS (SELECT FROM subjects AS u
                             WHERE u.did = s.subject_did AND u.collection = 'app.bsky.feed.post' AND u.rkey = s.subject_rkey AND s.named_id = ANY (u.links)) THEN 'subject_gone'
        WHEN s.shared_at <= now() - interval '7 days' THEN 'outside_window'
        WHEN EXISTS (SELECT FROM living_shares AS n
                     WHERE n.did = s.did AND n.link_id = s.link_id AND (n.shared_at, n.collection, n.rkey, n.named_id) > (s.shared_at, s.collection, s.rkey, s.named_id)) THEN 'same_person'
    END AS why
) AS y;

COMMENT ON VIEW link_shares IS 'Every stored share, with its account and whether it counts in the ranking of seven days. Name a link: WHERE link_id = 17.';
COMMENT ON COLUMN link_shares.handle IS 'Of an active account, if it is known.';
COMMENT ON COLUMN link_shares.uri IS 'The AT-URI of the record.';
COMMENT ON COLUMN link_shares.subject IS 'The AT-URI of the post that is quoted or reposted.';
COMMENT ON COLUMN link_shares.named IS 'The URL of the link that the record names: not that of the link if the two are merged.';
COMMENT ON COLUMN link_shares.text IS 'The text of the post, or of the one that is reposted, while it is stored.';
COMMENT ON COLUMN link_shares.why IS 'Why the share does not count; NULL: it counts. hidden: the account is not active; not_followed: no watch includes it; subject_hidden: the author of the subject is not active; subject_gone: the subject no longer contains the link; outside_window: older than seven days; same_person: the account shared the link again later.';

CREATE TABLE top_links (
    span    text   NOT NULL,
    link_id bigint NOT NULL,
    PRIMARY KEY (span, link_id)
);

COMMENT ON TABLE  top_links IS 'The 50 links with the most sharers of each window, as last announced. Whoever enters is announced on the channel weir_links. Only the counter writes here.';
COMMENT ON COLUMN top_links.span IS 'The window, such as 24h.';

CREATE TABLE top_links_state (
    one          boolean     PRIMARY KEY DEFAULT true CHECK (one),
    announced_at timestamptz NOT NULL
);

COMMENT ON TABLE top_links_state IS 'When top_links was last compared with the ranking. No row: never.';
