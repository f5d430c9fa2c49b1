-- The queries of internal/ranking that are composed of parts, for reading: nothing runs this file.

-- recountEverything
SELECT set_config('enable_seqscan', 'on', true), set_config('enable_nestloop', 'off', true);

-- recountEverything (2)
INSERT INTO count_state (as_of, kept_from, members_only) VALUES ($1, $2, $3)
ON CONFLICT (one) DO UPDATE SET as_of = excluded.as_of, kept_from = excluded.kept_from, members_only = excluded.members_only,
    counted = now();

-- recountEverything (3)
DELETE FROM pending_counts;

-- recountEverything (4)
WITH sharing AS MATERIALIZED (
    SELECT s.did, s.link_id,
           max(s.shared_at)                                 AS at,
           max(s.shared_at) FILTER (WHERE s.how = 'post')   AS post_at,
           max(s.shared_at) FILTER (WHERE s.how = 'quote')  AS quote_at,
           max(s.shared_at) FILTER (WHERE s.how = 'repost') AS repost_at
    FROM judged_shares AS s
    WHERE s.shared_at > $1 AND true AND s.why IS NULL
    GROUP BY s.did, s.link_id), own AS (
    SELECT s.did, s.link_id, s.claim_id, s.shared_at, s.collection, s.rkey, c.title,
        CASE WHEN s.named_id = s.link_id THEN c.url ELSE '' END AS url
    FROM judged_shares AS s
    JOIN claims AS c ON c.id = s.claim_id
    WHERE s.subject_did IS NULL AND s.shared_at > $1 AND true AND s.why IS NULL),
latest AS (
    SELECT o.*, o.collection || '/' || o.rkey AS key, first_value(o.claim_id) OVER titles AS title_claim,
        first_value(o.title) OVER titles AS vote,
           first_value(o.claim_id) OVER urls AS url_claim, first_value(o.url) OVER urls AS spelling
    FROM own AS o
    WINDOW titles AS (PARTITION BY o.link_id, o.did
        ORDER BY o.title = '', o.shared_at DESC, o.rkey DESC, o.collection DESC, o.claim_id DESC),
           urls   AS (PARTITION BY o.link_id, o.did ORDER BY o.url = '', o.shared_at DESC, o.rkey DESC, o.collection DESC, o.claim_id DESC)
), votes AS MATERIALIZED (
    SELECT l.link_id, l.did,
           min(l.title_claim) FILTER (WHERE l.vote <> '')                                              AS title_claim,
           min(l.shared_at) FILTER (WHERE l.title = l.vote AND l.vote <> '')                           AS title_at,
           (array_agg(l.key ORDER BY l.shared_at, l.key) FILTER (WHERE l.title = l.vote AND l.vote <> ''))[1] AS title_key,
           min(l.url_claim) FILTER (WHERE l.spelling <> '')                                            AS url_claim,
           min(l.shared_at) FILTER (WHERE l.url = l.spelling AND l.spelling <> '')                     AS url_at,
           (array_agg(l.key ORDER BY l.shared_at, l.key) FILTER (WHERE l.url = l.spelling AND l.spelling <> ''))[1] AS url_key
    FROM latest AS l
    GROUP BY l.link_id, l.did
), truth AS (
    SELECT s.*, v.title_claim, v.title_at, v.title_key, v.url_claim, v.url_at, v.url_key
    FROM sharing AS s
    LEFT JOIN votes AS v ON v.did = s.did AND v.link_id = s.link_id
), stale AS (
    DELETE FROM sharers AS f
    WHERE NOT EXISTS (SELECT FROM truth AS t WHERE t.did = f.did AND t.link_id = f.link_id)
), other AS (
    UPDATE sharers AS f
    SET at = t.at, post_at = t.post_at, quote_at = t.quote_at, repost_at = t.repost_at, title_claim = t.title_claim, title_at = t.title_at,
        title_key = t.title_key, url_claim = t.url_claim, url_at = t.url_at, url_key = t.url_key
    FROM truth AS t
    WHERE t.did = f.did AND t.link_id = f.link_id
      AND (f.at, f.post_at, f.quote_at, f.repost_at, f.title_claim, f.title_at, f.title_key, f.url_claim, f.url_at, f.url_key)
          IS DISTINCT FROM (t.at, t.post_at, t.quote_at, t.repost_at, t.title_claim, t.title_at, t.title_key, t.url_claim,
              t.url_at, t.url_key)
)
INSERT INTO sharers (did, link_id, at, post_at, quote_at, repost_at, title_claim, title_at, title_key, url_claim, url_at, url_key)
SELECT t.did, t.link_id, t.at, t.post_at, t.quote_at, t.repost_at, t.title_claim, t.title_at, t.title_key, t.url_claim, t.url_at, t.url_key
FROM truth AS t
WHERE NOT EXISTS (SELECT FROM sharers AS f WHERE f.did = t.did AND f.link_id = t.link_id)
ORDER BY t.did, t.link_id;

-- recountEverything (5)
WITH truth AS (
    SELECT f.link_id                                                                      AS link_id,
           count(*)::int                                                                  AS sharers,
           (count(*) FILTER (WHERE f.at > $1::timestamptz - interval '1 hour'))::int      AS in_1h,
           (count(*) FILTER (WHERE f.at > $1::timestamptz - interval '3 hours'))::int     AS in_3h,
           (count(*) FILTER (WHERE f.at > $1::timestamptz - interval '6 hours'))::int     AS in_6h,
           (count(*) FILTER (WHERE f.at > $1::timestamptz - interval '12 hours'))::int    AS in_12h,
           (count(*) FILTER (WHERE f.at > $1::timestamptz - interval '24 hours'))::int    AS in_24h,
           (count(*) FILTER (WHERE f.at > $1::timestamptz - interval '168 hours'))::int   AS in_7d,
           max(f.at)                                                                      AS last_at
    FROM sharers AS f
    WHERE  true 
    GROUP BY f.link_id
    HAVING count(*) >= 2), stale AS (
    DELETE FROM link_counts AS c
    WHERE NOT EXISTS (SELECT FROM truth AS t WHERE t.link_id = c.link_id)
), other AS (
    UPDATE link_counts AS c
    SET sharers = t.sharers, last_at = t.last_at,
        in_1h = t.in_1h, in_3h = t.in_3h, in_6h = t.in_6h, in_12h = t.in_12h, in_24h = t.in_24h, in_7d = t.in_7d
    FROM truth AS t
    WHERE t.link_id = c.link_id
      AND (c.sharers, c.in_1h, c.in_3h, c.in_6h, c.in_12h, c.in_24h, c.in_7d, c.last_at)
          IS DISTINCT FROM (t.sharers, t.in_1h, t.in_3h, t.in_6h, t.in_12h, t.in_24h, t.in_7d, t.last_at)
)
INSERT INTO link_counts (link_id, sharers, in_1h, in_3h, in_6h, in_12h, in_24h, in_7d, last_at)
SELECT t.link_id, t.sharers, t.in_1h, t.in_3h, t.in_6h, t.in_12h, t.in_24h, t.in_7d, t.last_at
FROM truth AS t
WHERE NOT EXISTS (SELECT FROM link_counts AS c WHERE c.link_id = t.link_id);

-- recountEverything (6)
WITH truth AS (
    SELECT f.link_id                                                                      AS link_id,
           count(*)::int                                                                  AS sharers,
           (count(*) FILTER (WHERE f.at > $1::timestamptz - interval '1 hour'))::int      AS in_1h,
           (count(*) FILTER (WHERE f.at > $1::timestamptz - interval '3 hours'))::int     AS in_3h,
           (count(*) FILTER (WHERE f.at > $1::timestamptz - interval '6 hours'))::int     AS in_6h,
           (count(*) FILTER (WHERE f.at > $1::timestamptz - interval '12 hours'))::int    AS in_12h,
           (count(*) FILTER (WHERE f.at > $1::timestamptz - interval '24 hours'))::int    AS in_24h,
           (count(*) FILTER (WHERE f.at > $1::timestamptz - interval '168 hours'))::int   AS in_7d,
           max(f.at)                                                                      AS last_at
    FROM sharers AS f
    WHERE  f.did LIKE 'did:nostr:%' 
    GROUP BY f.link_id
    HAVING count(*) >= 2), stale AS (
    DELETE FROM nostr_counts AS c
    WHERE NOT EXISTS (SELECT FROM truth AS t WHERE t.link_id = c.link_id)
), other AS (
    UPDATE nostr_counts AS c
    SET sharers = t.sharers, last_at = t.last_at,
        in_1h = t.in_1h, in_3h = t.in_3h, in_6h = t.in_6h, in_12h = t.in_12h, in_24h = t.in_24h, in_7d = t.in_7d
    FROM truth AS t
    WHERE t.link_id = c.link_id
      AND (c.sharers, c.in_1h, c.in_3h, c.in_6h, c.in_12h, c.in_24h, c.in_7d, c.last_at)
          IS DISTINCT FROM (t.sharers, t.in_1h, t.in_3h, t.in_6h, t.in_12h, t.in_24h, t.in_7d, t.last_at)
)
INSERT INTO nostr_counts (link_id, sharers, in_1h, in_3h, in_6h, in_12h, in_24h, in_7d, last_at)
SELECT t.link_id, t.sharers, t.in_1h, t.in_3h, t.in_6h, t.in_12h, t.in_24h, t.in_7d, t.last_at
FROM truth AS t
WHERE NOT EXISTS (SELECT FROM nostr_counts AS c WHERE c.link_id = t.link_id);

-- recountEverything (7)
SELECT FROM links AS l WHERE $1::bigint[] IS NULL AND (l.id IN (SELECT m.counts_as FROM cards AS c JOIN links AS m ON m.id = c.link_id WHERE c.title <> '' AND c.status = '' AND NOT  coalesce((SELECT true FROM walls AS w WHERE w.title_group = c.title_group), false) 
      AND (c.same_site OR m.merged_into IS NOT NULL
          AND EXISTS (SELECT FROM link_merges AS g WHERE g.link_id = m.id AND g.split_at IS NULL AND g.why <> 'by hand')))) ORDER BY l.id FOR NO KEY UPDATE OF l;

-- recountEverything (8)
DELETE FROM claim_votes;

-- recountEverything (9)
INSERT INTO claim_votes (claim_id, link_id, titles, title_at, title_from, urls, url_at, url_from, title_group)
SELECT k.*, c.title_group FROM (
    SELECT coalesce(t.claim_id, u.claim_id) AS claim_id, coalesce(t.link_id, u.link_id) AS link_id,
           coalesce(t.n, 0) AS titles, t.at AS title_at, t.uri AS title_from, coalesce(u.n, 0) AS urls, u.at AS url_at, u.uri AS url_from
    FROM (
        SELECT f.title_claim AS claim_id, f.link_id, count(*)::int AS n, min(f.title_at) AS at,
               (array_agg('at://' || f.did || '/' || f.title_key
                   ORDER BY f.title_at, 'at://' || f.did || '/' || f.title_key COLLATE "C"))[1] AS uri
        FROM sharers AS f WHERE true AND f.title_claim IS NOT NULL GROUP BY f.title_claim, f.link_id
    ) AS t
    FULL JOIN (
        SELECT f.url_claim AS claim_id, f.link_id, count(*)::int AS n, min(f.url_at) AS at,
               (array_agg('at://' || f.did || '/' || f.url_key
                   ORDER BY f.url_at, 'at://' || f.did || '/' || f.url_key COLLATE "C"))[1] AS uri
        FROM sharers AS f WHERE true AND f.url_claim IS NOT NULL GROUP BY f.url_claim, f.link_id
    ) AS u ON u.claim_id = t.claim_id AND u.link_id = t.link_id) AS k LEFT JOIN claims AS c ON c.id = k.claim_id;

-- recountEverything (10)
DELETE FROM walls;

-- recountEverything (11)
INSERT INTO walls
    SELECT p.title_group
    FROM (
        SELECT p.*, count(*) OVER (PARTITION BY p.title_group, p.did) AS of_one
        FROM (
            SELECT v.title_group, v.page, CASE WHEN bool_and(v.did <> '') AND min(v.did) = max(v.did) THEN min(v.did) END AS did
            FROM (
                SELECT v.title_group, CASE WHEN substring(split_part(l.identity, '?', 1) FROM '[^/]*$') ~ '[0-9]{5}|[^-]-[^-]+-[^-]+-[^-]' THEN substring(split_part(l.identity, '?', 1) FROM '[^/]*$') ELSE split_part(l.identity, '?', 1) END AS page,
                       CASE WHEN sum(v.titles) = 1 THEN split_part(min(v.title_from), '/', 3) ELSE '' END AS did
                FROM (SELECT v.* FROM claim_votes AS v WHERE v.title_group IS NOT NULL AND v.titles > 0) AS v JOIN links AS l ON l.id = v.link_id
                GROUP BY v.title_group, l.id
            ) AS v
            GROUP BY v.title_group, v.page
        ) AS p
    ) AS p
    GROUP BY p.title_group
    HAVING count(*) >= 3 AND count(*) - coalesce(max(p.of_one) FILTER (WHERE p.did IS NOT NULL), 0) >= 2;

-- recountEverything (12)
WITH v AS MATERIALIZED (SELECT v.* FROM claim_votes AS v WHERE $1::bigint[] IS NULL),
pages AS (
    SELECT DISTINCT ON (g.link_id) g.link_id, g.title, g.description, g.address
    FROM (
        SELECT c.link_id, c.title, c.description, c.address, c.fetched_at, c.link_id AS of, 1 AS n
        FROM cards AS c JOIN links AS m ON m.id = c.link_id WHERE $1::bigint[] IS NULL AND m.merged_into IS NULL AND c.title <> '' AND c.status = '' AND NOT  coalesce((SELECT true FROM walls AS w WHERE w.title_group = c.title_group), false) 
      AND (c.same_site OR m.merged_into IS NOT NULL
          AND EXISTS (SELECT FROM link_merges AS g WHERE g.link_id = m.id AND g.split_at IS NULL AND g.why <> 'by hand'))
        UNION ALL
        SELECT m.merged_into, c.title, c.description, c.address, c.fetched_at, c.link_id, 2
        FROM links AS m JOIN cards AS c ON c.link_id = m.id
        WHERE $1::bigint[] IS NULL AND m.merged_into IS NOT NULL AND c.title <> '' AND c.status = '' AND NOT  coalesce((SELECT true FROM walls AS w WHERE w.title_group = c.title_group), false) 
      AND (c.same_site OR m.merged_into IS NOT NULL
          AND EXISTS (SELECT FROM link_merges AS g WHERE g.link_id = m.id AND g.split_at IS NULL AND g.why <> 'by hand'))
    ) AS g
    ORDER BY g.link_id, g.n, g.fetched_at, g.of
), 
c AS (
    SELECT v.claim_id, v.link_id, CASE WHEN coalesce((SELECT true FROM walls AS w WHERE w.title_group = c.title_group), false) THEN 0 ELSE v.titles END AS titles, v.title_at, v.title_from, v.urls, v.url_at, v.url_from,
           c.url, c.site, c.title, coalesce(nullif(c.title_key, ''), c.title) AS key, c.description, c.image
    FROM v JOIN claims AS c ON c.id = v.claim_id
), variants AS (
    SELECT h.*, CASE WHEN h.cut AND char_length(h.whole) >= 8
        AND starts_with(h.longer, h.whole) THEN split_part(h.longer, E'\n', 2) ELSE h.same END AS variant
    FROM (
        SELECT h.*, min(CASE WHEN NOT h.cut THEN h.whole || E'\n' || h.same END)
                    OVER (PARTITION BY h.link_id ORDER BY h.whole DESC, h.cut ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS longer
        FROM (
            SELECT h.*, CASE WHEN bool_or(h.whole = h.head AND NOT h.cut) OVER (PARTITION BY h.link_id, h.head)
                THEN h.head ELSE h.whole END AS same
            FROM (
                SELECT c.*, c.key LIKE '%…' AS cut, c.key LIKE E'%\n%' AS named, split_part(rtrim(c.key, '…'), E'\n', 1) AS head,
                       rtrim(replace(rtrim(c.key, '…'), E'\n', ' ')) AS whole
                FROM c WHERE c.titles > 0
            ) AS h
        ) AS h
    ) AS h
), best AS MATERIALIZED (
    SELECT DISTINCT ON (g.link_id) g.link_id, g.variant
    FROM (
        SELECT c.link_id, c.variant, sum(c.titles) AS n, min(c.title_at) AS at,
            (array_agg(c.title_from ORDER BY c.title_at, c.title_from COLLATE "C"))[1] AS uri
        FROM variants AS c GROUP BY c.link_id, c.variant
    ) AS g
    ORDER BY g.link_id, g.n DESC, g.at, g.uri COLLATE "C"
), voters AS (
    SELECT c.* FROM variants AS c JOIN best AS b ON b.link_id = c.link_id AND b.variant = c.variant
), title AS MATERIALIZED (
    SELECT DISTINCT ON (g.link_id) g.link_id, g.title, g.uri
    FROM (
        SELECT c.link_id, c.title, bool_and(c.cut) AS cut, bool_and(c.named) AS named, sum(c.titles) AS n, min(c.title_at) AS at,
               (array_agg(c.title_from ORDER BY c.title_at, c.title_from COLLATE "C"))[1] AS uri
        FROM voters AS c GROUP BY c.link_id, c.title
    ) AS g
    ORDER BY g.link_id, g.cut, g.title IN (upper(g.title), lower(g.title)) AND upper(g.title) <> lower(g.title), g.named, g.n DESC,
        g.at, g.uri COLLATE "C"
), description AS (
    SELECT DISTINCT ON (g.link_id) g.link_id, g.description
    FROM (
        SELECT c.link_id, c.description, sum(c.titles) AS n, min(c.title_at) AS at,
            (array_agg(c.title_from ORDER BY c.title_at, c.title_from COLLATE "C"))[1] AS uri
        FROM voters AS c WHERE c.description <> '' GROUP BY c.link_id, c.description
    ) AS g
    ORDER BY g.link_id, g.n DESC, g.at, g.uri COLLATE "C"
), picture AS (
    SELECT DISTINCT ON (g.link_id) g.link_id, 'blob:' || split_part(g.uri, '/', 3) || '/' || g.image AS image
    FROM (
        SELECT c.link_id, c.image, sum(c.titles) AS n, min(c.title_at) AS at,
            (array_agg(c.title_from ORDER BY c.title_at, c.title_from COLLATE "C"))[1] AS uri
        FROM voters AS c WHERE c.image <> '' GROUP BY c.link_id, c.image
    ) AS g
    ORDER BY g.link_id, g.n DESC, g.at, g.uri COLLATE "C"
), spelling AS MATERIALIZED (
    SELECT DISTINCT ON (g.link_id) g.link_id, g.url, g.site
    FROM (
        SELECT c.link_id, c.url, min(c.site) AS site, sum(c.urls) AS n, min(c.url_at) AS at,
            (array_agg(c.url_from ORDER BY c.url_at, c.url_from COLLATE "C"))[1] AS uri
        FROM c WHERE c.urls > 0 GROUP BY c.link_id, c.url
    ) AS g
    ORDER BY g.link_id, g.n DESC, starts_with(g.url, 'https:') DESC, g.at, g.uri COLLATE "C"
), chosen AS MATERIALIZED (
    SELECT k.link_id AS link, coalesce(u.url, '') AS url, coalesce(u.site, '') AS site, coalesce(g.title, t.title, '') AS title,
           coalesce(nullif(g.description, ''), d.description, '') AS description, coalesce(p.image, '') AS image,
               coalesce(g.address, t.uri, '') AS "from"
    FROM (SELECT c.link_id FROM c UNION SELECT g.link_id FROM pages AS g) AS k
    LEFT JOIN pages AS g ON g.link_id = k.link_id
    LEFT JOIN spelling AS u ON u.link_id = k.link_id
    LEFT JOIN title AS t ON t.link_id = k.link_id
    LEFT JOIN description AS d ON d.link_id = k.link_id
    LEFT JOIN picture AS p ON p.link_id = k.link_id
)
UPDATE links AS l
SET url         = CASE WHEN h.url = '' THEN l.url ELSE h.url END,
    site        = CASE WHEN h.url = '' THEN l.site ELSE h.site END,
    title       = CASE WHEN h.title = '' THEN l.title ELSE h.title END,
    description = CASE WHEN h.title = '' THEN l.description ELSE h.description END,
    image       = CASE WHEN h.title = '' THEN l.image ELSE h.image END,
    card_from   = CASE WHEN h.title = '' THEN l.card_from ELSE h."from" END
FROM chosen AS h
WHERE l.id = h.link AND $1::bigint[] IS NULL AND (h.url <> '' AND (l.url, l.site) IS DISTINCT FROM (h.url, h.site)
    OR h.title <> '' AND (l.title, l.description, l.image, l.card_from) IS DISTINCT FROM (h.title, h.description, h.image, h."from"));

-- recountEverything (13)
UPDATE links AS l SET title = '', description = '', image = '', card_from = ''
WHERE $1::bigint[] IS NULL AND l.title <> ''
  AND NOT EXISTS (SELECT FROM claim_votes AS v WHERE v.link_id = l.id AND v.titles > 0 AND NOT coalesce((SELECT true FROM walls AS w WHERE w.title_group = v.title_group), false) OFFSET 0) AND NOT (l.id IN (SELECT m.counts_as FROM cards AS c JOIN links AS m ON m.id = c.link_id WHERE c.title <> '' AND c.status = '' AND NOT  coalesce((SELECT true FROM walls AS w WHERE w.title_group = c.title_group), false) 
      AND (c.same_site OR m.merged_into IS NOT NULL
          AND EXISTS (SELECT FROM link_merges AS g WHERE g.link_id = m.id AND g.split_at IS NULL AND g.why <> 'by hand'))) OR l.card_from NOT LIKE 'http%' AND (l.kept_at IS NOT NULL OR EXISTS (
    SELECT FROM judged_shares AS s JOIN claims AS c ON c.id = s.claim_id
    WHERE s.link_id = l.id AND s.subject_did IS NULL AND c.title <> '' AND NOT coalesce((SELECT true FROM walls AS w WHERE w.title_group = c.title_group), false) AND s.why IS NULL)));

-- recountEverything (14)
WITH k AS (SELECT n.link_id, CASE WHEN n.sharers >= 5 THEN 5 ELSE 2 END::smallint AS sharers FROM link_counts AS n), variants AS (
    SELECT k.link_id,
        o.link_id AS other
    FROM k JOIN claim_votes AS v ON v.link_id = k.link_id AND v.titles > 0 AND NOT coalesce((SELECT true FROM walls AS w WHERE w.title_group = v.title_group), false) 
    CROSS JOIN LATERAL (SELECT o.link_id FROM claim_votes AS o
            WHERE o.title_group = v.title_group AND o.link_id <> v.link_id AND o.titles > 0 LIMIT 3) AS o
    UNION
    SELECT k.link_id,
        m.counts_as
    FROM k JOIN claim_votes AS v ON v.link_id = k.link_id AND v.titles > 0 AND NOT coalesce((SELECT true FROM walls AS w WHERE w.title_group = v.title_group), false) 
    CROSS JOIN LATERAL (SELECT c.link_id FROM cards AS c
            WHERE c.title_group = v.title_group AND c.link_id <> v.link_id AND c.status = '' LIMIT 3) AS c
    JOIN links AS m ON m.id = c.link_id AND m.counts_as <> k.link_id
    UNION
    SELECT k.link_id, o.counts_as
    FROM k JOIN links AS l ON l.id = k.link_id AND substring(split_part(l.identity, '?', 1) FROM '[^/]*$') ~ '[0-9]{5}|[^-]-[^-]+-[^-]+-[^-]'
    CROSS JOIN LATERAL (SELECT o.counts_as FROM links AS o
        WHERE substring(split_part(o.identity, '?', 1) FROM '[^/]*$') = substring(split_part(l.identity, '?', 1) FROM '[^/]*$') AND substring(split_part(o.identity, '?', 1) FROM '[^/]*$') ~ '[0-9]{5}|[^-]-[^-]+-[^-]+-[^-]' AND o.site = l.site
            AND o.counts_as <> l.id LIMIT 3) AS o
), wanted AS (
    SELECT a.link_id, max(a.sharers) AS sharers
    FROM (
        SELECT k.link_id, k.sharers FROM k
        WHERE (k.sharers >= 5 OR k.link_id IN (SELECT a.link_id FROM variants AS a)
               OR k.sharers >= 2
                   AND NOT EXISTS (SELECT FROM claim_votes AS v WHERE v.link_id = k.link_id AND v.titles > 0 AND NOT coalesce((SELECT true FROM walls AS w WHERE w.title_group = v.title_group), false) ))
          AND NOT EXISTS (SELECT FROM cards AS c WHERE c.link_id = k.link_id AND (c.fetch_at IS NULL OR c.sharers >= k.sharers))
        UNION ALL
        SELECT a.other, coalesce((SELECT 2 FROM link_counts AS n WHERE n.link_id = a.other), 1)
        FROM variants AS a WHERE NOT EXISTS (SELECT FROM cards AS c WHERE c.link_id = a.other)
    ) AS a
    GROUP BY a.link_id
)
INSERT INTO cards AS c (link_id, sharers, fetch_at)
SELECT l.id, w.sharers, now()
FROM (SELECT * FROM wanted ORDER BY link_id) AS w
CROSS JOIN LATERAL (SELECT l.id FROM links AS l WHERE l.id = w.link_id AND l.merged_into IS NULL LIMIT 1 FOR KEY SHARE) AS l
ON CONFLICT (link_id) DO UPDATE SET sharers = greatest(c.sharers, excluded.sharers);

-- readChanges
WITH asked AS (
    SELECT a.* FROM unnest($1::bigint[], $2::text[], $5::text[], $6::text[]) AS a (link_id, did, subject_did, subject_rkey)
), pairs AS (
    SELECT a.link_id, a.did FROM asked AS a WHERE a.link_id IS NOT NULL AND a.did IS NOT NULL
    UNION
    SELECT s.link_id, a.did FROM asked AS a
    CROSS JOIN LATERAL (SELECT s.link_id FROM sharers AS s WHERE s.did = a.did LIMIT $4) AS s WHERE a.link_id IS NULL
    UNION
    SELECT s.link_id, a.did FROM asked AS a
    CROSS JOIN LATERAL (SELECT DISTINCT s.link_id FROM shares AS s WHERE s.did = a.did LIMIT $4) AS s WHERE a.link_id IS NULL
    UNION
    SELECT a.link_id, s.did FROM asked AS a
    CROSS JOIN LATERAL (SELECT s.did FROM sharers AS s WHERE s.link_id = a.link_id LIMIT $4) AS s
    WHERE a.did IS NULL AND a.link_id IS NOT NULL
    UNION
    SELECT a.link_id, s.did FROM asked AS a
    CROSS JOIN LATERAL (SELECT DISTINCT s.did FROM shares AS s WHERE s.link_id = a.link_id LIMIT $4) AS s
    WHERE a.did IS NULL AND a.link_id IS NOT NULL
    UNION
    SELECT s.link_id, s.did FROM asked AS a
    CROSS JOIN LATERAL (SELECT DISTINCT s.link_id, s.did FROM shares AS s WHERE s.subject_did = a.did LIMIT $4) AS s WHERE a.link_id IS NULL
    UNION
    SELECT s.link_id, s.did
    FROM asked AS a
    CROSS JOIN LATERAL (SELECT DISTINCT s.link_id, s.did FROM shares AS s
        WHERE s.subject_did = a.subject_did AND s.subject_rkey = a.subject_rkey LIMIT $4) AS s
    WHERE a.subject_did IS NOT NULL
    UNION
    SELECT s.link_id, c.did
    FROM asked AS a
    CROSS JOIN LATERAL (SELECT c.did, c.collection, c.rkey FROM copies AS c
        WHERE c.of_did = a.subject_did AND c.of_rkey = a.subject_rkey LIMIT $4) AS c
    CROSS JOIN LATERAL (SELECT s.link_id FROM shares AS s
        WHERE s.did = c.did AND s.collection = c.collection AND s.rkey = c.rkey LIMIT $4) AS s
    WHERE a.subject_did IS NOT NULL
    LIMIT $4
)
SELECT p.link_id, p.did, f.post_at, f.quote_at, f.repost_at, t.post_at, t.quote_at, t.repost_at,
       f.title_claim, f.title_at, f.title_key, f.url_claim, f.url_at, f.url_key, t.claims, t.named, t.dates, t.collections, t.rkeys
FROM pairs AS p
LEFT JOIN LATERAL (
    SELECT f.* FROM sharers AS f WHERE f.did = p.did AND f.link_id = p.link_id LIMIT 1
) AS f ON true
LEFT JOIN LATERAL (
    SELECT max(s.shared_at) FILTER (WHERE s.how = 'post')   AS post_at,
           max(s.shared_at) FILTER (WHERE s.how = 'quote')  AS quote_at,
           max(s.shared_at) FILTER (WHERE s.how = 'repost') AS repost_at,
           array_agg(s.claim_id) FILTER (WHERE s.subject_did IS NULL AND s.claim_id IS NOT NULL) AS claims, array_agg(s.named_id = s.link_id) FILTER (WHERE s.subject_did IS NULL AND s.claim_id IS NOT NULL) AS named,
               array_agg(s.shared_at) FILTER (WHERE s.subject_did IS NULL AND s.claim_id IS NOT NULL) AS dates,
           array_agg(s.collection) FILTER (WHERE s.subject_did IS NULL AND s.claim_id IS NOT NULL) AS collections, array_agg(s.rkey) FILTER (WHERE s.subject_did IS NULL AND s.claim_id IS NOT NULL) AS rkeys
    FROM (SELECT s.* FROM judged_shares AS s WHERE s.did = p.did AND s.link_id = p.link_id OFFSET 0) AS s
    WHERE s.shared_at > $3 AND s.why IS NULL
) AS t ON true;

-- addVotes
WITH own AS (
    SELECT a.link_id, a.did, a.claim_id, a.shared_at, a.collection COLLATE "C" AS collection, a.rkey COLLATE "C" AS rkey, c.title,
        CASE WHEN a.named THEN c.url ELSE '' END AS url
    FROM unnest($1::bigint[], $2::text[], $3::bigint[], $4::boolean[], $5::timestamptz[], $6::text[], $7::text[])
         AS a (link_id, did, claim_id, named, shared_at, collection, rkey)
    JOIN claims AS c ON c.id = a.claim_id
),
latest AS (
    SELECT o.*, o.collection || '/' || o.rkey AS key, first_value(o.claim_id) OVER titles AS title_claim,
        first_value(o.title) OVER titles AS vote,
           first_value(o.claim_id) OVER urls AS url_claim, first_value(o.url) OVER urls AS spelling
    FROM own AS o
    WINDOW titles AS (PARTITION BY o.link_id, o.did
        ORDER BY o.title = '', o.shared_at DESC, o.rkey DESC, o.collection DESC, o.claim_id DESC),
           urls   AS (PARTITION BY o.link_id, o.did ORDER BY o.url = '', o.shared_at DESC, o.rkey DESC, o.collection DESC, o.claim_id DESC)
), votes AS MATERIALIZED (
    SELECT l.link_id, l.did,
           min(l.title_claim) FILTER (WHERE l.vote <> '')                                              AS title_claim,
           min(l.shared_at) FILTER (WHERE l.title = l.vote AND l.vote <> '')                           AS title_at,
           (array_agg(l.key ORDER BY l.shared_at, l.key) FILTER (WHERE l.title = l.vote AND l.vote <> ''))[1] AS title_key,
           min(l.url_claim) FILTER (WHERE l.spelling <> '')                                            AS url_claim,
           min(l.shared_at) FILTER (WHERE l.url = l.spelling AND l.spelling <> '')                     AS url_at,
           (array_agg(l.key ORDER BY l.shared_at, l.key) FILTER (WHERE l.url = l.spelling AND l.spelling <> ''))[1] AS url_key
    FROM latest AS l
    GROUP BY l.link_id, l.did
)
SELECT v.link_id, v.did, v.title_claim, v.title_at, v.title_key, v.url_claim, v.url_at, v.url_key FROM votes AS v;

-- queueCrossings
SELECT w.i, s.link_id, s.did
FROM unnest($1::int[], $2::timestamptz[], $3::timestamptz[]) AS w (i, after, until)
CROSS JOIN LATERAL (SELECT s.link_id, s.did FROM sharers AS s
    WHERE s.at > w.after AND s.at <= w.until AND s.did LIKE 'did:nostr:%' ORDER BY s.at LIMIT $4) AS s
LIMIT $4;

-- readTallies
SELECT k.link_id, c.sharers, c.in_1h, c.in_3h, c.in_6h, c.in_12h, c.in_24h, c.in_7d, c.last_at, f.did, f.at
FROM unnest($1::bigint[], $2::int[]) AS k (link_id, n)
LEFT JOIN LATERAL (SELECT c.* FROM nostr_counts AS c WHERE c.link_id = k.link_id LIMIT 1) AS c ON true
LEFT JOIN LATERAL (
    SELECT f.did, f.at FROM sharers AS f WHERE f.link_id = k.link_id AND f.did LIKE 'did:nostr:%' 
    ORDER BY f.at DESC
    LIMIT CASE WHEN k.n > 0 OR c.link_id IS NULL THEN k.n + 1 ELSE 0 END
) AS f ON true;

-- sumVotes
SELECT v.claim_id, v.link_id, v.title_group, v.titles, v.urls, CASE WHEN v.title_lost THEN t.at ELSE v.title_at END, CASE
    WHEN v.title_lost THEN t.uri ELSE v.title_from END,
       CASE WHEN v.url_lost THEN u.at ELSE v.url_at END, CASE WHEN v.url_lost THEN u.uri ELSE v.url_from END
FROM unnest($1::bigint[], $2::bigint[]) AS k (id, link_id)
CROSS JOIN LATERAL (
    SELECT v.*, v.title_from = ANY ($5::text[]) AS title_lost, v.url_from = ANY ($6::text[]) AS url_lost
    FROM claim_votes AS v
    WHERE v.claim_id = k.id AND v.link_id = k.link_id
    LIMIT 1
) AS v
LEFT JOIN LATERAL (
    SELECT f.title_at AS at, 'at://' || f.did || '/' || f.title_key AS uri
    FROM sharers AS f
    WHERE v.title_lost AND f.title_claim = k.id AND f.link_id = k.link_id
        AND (f.link_id, f.did) NOT IN (SELECT * FROM unnest($3::bigint[], $4::text[]))
    ORDER BY f.title_at, 'at://' || f.did || '/' || f.title_key COLLATE "C"
    LIMIT 1) AS t ON true
LEFT JOIN LATERAL (
    SELECT f.url_at AS at, 'at://' || f.did || '/' || f.url_key AS uri
    FROM sharers AS f
    WHERE v.url_lost AND f.url_claim = k.id AND f.link_id = k.link_id
        AND (f.link_id, f.did) NOT IN (SELECT * FROM unnest($3::bigint[], $4::text[]))
    ORDER BY f.url_at, 'at://' || f.did || '/' || f.url_key COLLATE "C"
    LIMIT 1) AS u ON true;

-- readHeadlines
WITH v AS MATERIALIZED (
    SELECT v.claim_id, v.link_id, v.titles, v.title_at, v.title_from, v.urls, v.url_at, v.url_from
    FROM claim_votes AS v
    WHERE v.link_id = ANY ($9) AND (v.claim_id, v.link_id) NOT IN (SELECT * FROM unnest($10::bigint[], $11::bigint[]))
    UNION ALL
    SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::int[], $4::timestamptz[], $5::text[], $6::int[], $7::timestamptz[], $8::text[])
),
pages AS (
    SELECT DISTINCT ON (g.link_id) g.link_id, g.title, g.description, g.address
    FROM (
        SELECT c.link_id, c.title, c.description, c.address, c.fetched_at, c.link_id AS of, 1 AS n
        FROM cards AS c JOIN links AS m ON m.id = c.link_id WHERE c.link_id = ANY ($9) AND m.merged_into IS NULL AND c.title <> '' AND c.status = '' AND NOT  coalesce((SELECT true FROM walls AS w WHERE w.title_group = c.title_group), false) 
      AND (c.same_site OR m.merged_into IS NOT NULL
          AND EXISTS (SELECT FROM link_merges AS g WHERE g.link_id = m.id AND g.split_at IS NULL AND g.why <> 'by hand'))
        UNION ALL
        SELECT m.merged_into, c.title, c.description, c.address, c.fetched_at, c.link_id, 2
        FROM links AS m JOIN cards AS c ON c.link_id = m.id
        WHERE m.merged_into = ANY ($9) AND m.merged_into IS NOT NULL AND c.title <> '' AND c.status = '' AND NOT  coalesce((SELECT true FROM walls AS w WHERE w.title_group = c.title_group), false) 
      AND (c.same_site OR m.merged_into IS NOT NULL
          AND EXISTS (SELECT FROM link_merges AS g WHERE g.link_id = m.id AND g.split_at IS NULL AND g.why <> 'by hand'))
    ) AS g
    ORDER BY g.link_id, g.n, g.fetched_at, g.of
), 
c AS (
    SELECT v.claim_id, v.link_id, CASE WHEN coalesce((SELECT true FROM walls AS w WHERE w.title_group = c.title_group), false) THEN 0 ELSE v.titles END AS titles, v.title_at, v.title_from, v.urls, v.url_at, v.url_from,
           c.url, c.site, c.title, coalesce(nullif(c.title_key, ''), c.title) AS key, c.description, c.image
    FROM v JOIN claims AS c ON c.id = v.claim_id
), variants AS (
    SELECT h.*, CASE WHEN h.cut AND char_length(h.whole) >= 8
        AND starts_with(h.longer, h.whole) THEN split_part(h.longer, E'\n', 2) ELSE h.same END AS variant
    FROM (
        SELECT h.*, min(CASE WHEN NOT h.cut THEN h.whole || E'\n' || h.same END)
                    OVER (PARTITION BY h.link_id ORDER BY h.whole DESC, h.cut ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS longer
        FROM (
            SELECT h.*, CASE WHEN bool_or(h.whole = h.head AND NOT h.cut) OVER (PARTITION BY h.link_id, h.head)
                THEN h.head ELSE h.whole END AS same
            FROM (
                SELECT c.*, c.key LIKE '%…' AS cut, c.key LIKE E'%\n%' AS named, split_part(rtrim(c.key, '…'), E'\n', 1) AS head,
                       rtrim(replace(rtrim(c.key, '…'), E'\n', ' ')) AS whole
                FROM c WHERE c.titles > 0
            ) AS h
        ) AS h
    ) AS h
), best AS MATERIALIZED (
    SELECT DISTINCT ON (g.link_id) g.link_id, g.variant
    FROM (
        SELECT c.link_id, c.variant, sum(c.titles) AS n, min(c.title_at) AS at,
            (array_agg(c.title_from ORDER BY c.title_at, c.title_from COLLATE "C"))[1] AS uri
        FROM variants AS c GROUP BY c.link_id, c.variant
    ) AS g
    ORDER BY g.link_id, g.n DESC, g.at, g.uri COLLATE "C"
), voters AS (
    SELECT c.* FROM variants AS c JOIN best AS b ON b.link_id = c.link_id AND b.variant = c.variant
), title AS MATERIALIZED (
    SELECT DISTINCT ON (g.link_id) g.link_id, g.title, g.uri
    FROM (
        SELECT c.link_id, c.title, bool_and(c.cut) AS cut, bool_and(c.named) AS named, sum(c.titles) AS n, min(c.title_at) AS at,
               (array_agg(c.title_from ORDER BY c.title_at, c.title_from COLLATE "C"))[1] AS uri
        FROM voters AS c GROUP BY c.link_id, c.title
    ) AS g
    ORDER BY g.link_id, g.cut, g.title IN (upper(g.title), lower(g.title)) AND upper(g.title) <> lower(g.title), g.named, g.n DESC,
        g.at, g.uri COLLATE "C"
), description AS (
    SELECT DISTINCT ON (g.link_id) g.link_id, g.description
    FROM (
        SELECT c.link_id, c.description, sum(c.titles) AS n, min(c.title_at) AS at,
            (array_agg(c.title_from ORDER BY c.title_at, c.title_from COLLATE "C"))[1] AS uri
        FROM voters AS c WHERE c.description <> '' GROUP BY c.link_id, c.description
    ) AS g
    ORDER BY g.link_id, g.n DESC, g.at, g.uri COLLATE "C"
), picture AS (
    SELECT DISTINCT ON (g.link_id) g.link_id, 'blob:' || split_part(g.uri, '/', 3) || '/' || g.image AS image
    FROM (
        SELECT c.link_id, c.image, sum(c.titles) AS n, min(c.title_at) AS at,
            (array_agg(c.title_from ORDER BY c.title_at, c.title_from COLLATE "C"))[1] AS uri
        FROM voters AS c WHERE c.image <> '' GROUP BY c.link_id, c.image
    ) AS g
    ORDER BY g.link_id, g.n DESC, g.at, g.uri COLLATE "C"
), spelling AS MATERIALIZED (
    SELECT DISTINCT ON (g.link_id) g.link_id, g.url, g.site
    FROM (
        SELECT c.link_id, c.url, min(c.site) AS site, sum(c.urls) AS n, min(c.url_at) AS at,
            (array_agg(c.url_from ORDER BY c.url_at, c.url_from COLLATE "C"))[1] AS uri
        FROM c WHERE c.urls > 0 GROUP BY c.link_id, c.url
    ) AS g
    ORDER BY g.link_id, g.n DESC, starts_with(g.url, 'https:') DESC, g.at, g.uri COLLATE "C"
), chosen AS MATERIALIZED (
    SELECT k.link_id AS link, coalesce(u.url, '') AS url, coalesce(u.site, '') AS site, coalesce(g.title, t.title, '') AS title,
           coalesce(nullif(g.description, ''), d.description, '') AS description, coalesce(p.image, '') AS image,
               coalesce(g.address, t.uri, '') AS "from"
    FROM (SELECT c.link_id FROM c UNION SELECT g.link_id FROM pages AS g) AS k
    LEFT JOIN pages AS g ON g.link_id = k.link_id
    LEFT JOIN spelling AS u ON u.link_id = k.link_id
    LEFT JOIN title AS t ON t.link_id = k.link_id
    LEFT JOIN description AS d ON d.link_id = k.link_id
    LEFT JOIN picture AS p ON p.link_id = k.link_id
)
SELECT * FROM chosen;

-- recountHeadlines: before the first count
WITH walls AS (
    WITH peers AS MATERIALIZED (
        SELECT l.counts_as AS link_id FROM claims AS c JOIN links AS l ON l.id = c.link_id
        WHERE c.title_group IN (SELECT c.title_group FROM shares AS s JOIN claims AS c ON c.id = s.claim_id WHERE s.link_id = ANY ($2))
    ), own AS (
    SELECT s.did, s.link_id, s.claim_id, s.shared_at, s.collection, s.rkey, c.title,
        CASE WHEN s.named_id = s.link_id THEN c.url ELSE '' END AS url
    FROM judged_shares AS s
    JOIN claims AS c ON c.id = s.claim_id
    WHERE s.subject_did IS NULL AND s.shared_at > $1 AND s.link_id IN (SELECT p.link_id FROM peers AS p) AND s.why IS NULL),
latest AS (
    SELECT o.*, o.collection || '/' || o.rkey AS key, first_value(o.claim_id) OVER titles AS title_claim,
        first_value(o.title) OVER titles AS vote,
           first_value(o.claim_id) OVER urls AS url_claim, first_value(o.url) OVER urls AS spelling
    FROM own AS o
    WINDOW titles AS (PARTITION BY o.link_id, o.did
        ORDER BY o.title = '', o.shared_at DESC, o.rkey DESC, o.collection DESC, o.claim_id DESC),
           urls   AS (PARTITION BY o.link_id, o.did ORDER BY o.url = '', o.shared_at DESC, o.rkey DESC, o.collection DESC, o.claim_id DESC)
), votes AS MATERIALIZED (
    SELECT l.link_id, l.did,
           min(l.title_claim) FILTER (WHERE l.vote <> '')                                              AS title_claim,
           min(l.shared_at) FILTER (WHERE l.title = l.vote AND l.vote <> '')                           AS title_at,
           (array_agg(l.key ORDER BY l.shared_at, l.key) FILTER (WHERE l.title = l.vote AND l.vote <> ''))[1] AS title_key,
           min(l.url_claim) FILTER (WHERE l.spelling <> '')                                            AS url_claim,
           min(l.shared_at) FILTER (WHERE l.url = l.spelling AND l.spelling <> '')                     AS url_at,
           (array_agg(l.key ORDER BY l.shared_at, l.key) FILTER (WHERE l.url = l.spelling AND l.spelling <> ''))[1] AS url_key
    FROM latest AS l
    GROUP BY l.link_id, l.did
),
    v AS MATERIALIZED (
    SELECT coalesce(t.claim_id, u.claim_id) AS claim_id, coalesce(t.link_id, u.link_id) AS link_id,
           coalesce(t.n, 0) AS titles, t.at AS title_at, t.uri AS title_from, coalesce(u.n, 0) AS urls, u.at AS url_at, u.uri AS url_from
    FROM (
        SELECT f.title_claim AS claim_id, f.link_id, count(*)::int AS n, min(f.title_at) AS at,
               (array_agg('at://' || f.did || '/' || f.title_key
                   ORDER BY f.title_at, 'at://' || f.did || '/' || f.title_key COLLATE "C"))[1] AS uri
        FROM votes AS f WHERE true AND f.title_claim IS NOT NULL GROUP BY f.title_claim, f.link_id
    ) AS t
    FULL JOIN (
        SELECT f.url_claim AS claim_id, f.link_id, count(*)::int AS n, min(f.url_at) AS at,
               (array_agg('at://' || f.did || '/' || f.url_key
                   ORDER BY f.url_at, 'at://' || f.did || '/' || f.url_key COLLATE "C"))[1] AS uri
        FROM votes AS f WHERE true AND f.url_claim IS NOT NULL GROUP BY f.url_claim, f.link_id
    ) AS u ON u.claim_id = t.claim_id AND u.link_id = t.link_id), titled AS (
        SELECT v.*, c.title_group FROM v JOIN claims AS c ON c.id = v.claim_id WHERE v.titles > 0 AND c.title_group IS NOT NULL
    )
    SELECT p.title_group
    FROM (
        SELECT p.*, count(*) OVER (PARTITION BY p.title_group, p.did) AS of_one
        FROM (
            SELECT v.title_group, v.page, CASE WHEN bool_and(v.did <> '') AND min(v.did) = max(v.did) THEN min(v.did) END AS did
            FROM (
                SELECT v.title_group, CASE WHEN substring(split_part(l.identity, '?', 1) FROM '[^/]*$') ~ '[0-9]{5}|[^-]-[^-]+-[^-]+-[^-]' THEN substring(split_part(l.identity, '?', 1) FROM '[^/]*$') ELSE split_part(l.identity, '?', 1) END AS page,
                       CASE WHEN sum(v.titles) = 1 THEN split_part(min(v.title_from), '/', 3) ELSE '' END AS did
                FROM titled AS v JOIN links AS l ON l.id = v.link_id
                GROUP BY v.title_group, l.id
            ) AS v
            GROUP BY v.title_group, v.page
        ) AS p
    ) AS p
    GROUP BY p.title_group
    HAVING count(*) >= 3 AND count(*) - coalesce(max(p.of_one) FILTER (WHERE p.did IS NOT NULL), 0) >= 2
), own AS (
    SELECT s.did, s.link_id, s.claim_id, s.shared_at, s.collection, s.rkey, c.title,
        CASE WHEN s.named_id = s.link_id THEN c.url ELSE '' END AS url
    FROM judged_shares AS s
    JOIN claims AS c ON c.id = s.claim_id
    WHERE s.subject_did IS NULL AND s.shared_at > $1 AND s.link_id = ANY ($2) AND s.why IS NULL),
latest AS (
    SELECT o.*, o.collection || '/' || o.rkey AS key, first_value(o.claim_id) OVER titles AS title_claim,
        first_value(o.title) OVER titles AS vote,
           first_value(o.claim_id) OVER urls AS url_claim, first_value(o.url) OVER urls AS spelling
    FROM own AS o
    WINDOW titles AS (PARTITION BY o.link_id, o.did
        ORDER BY o.title = '', o.shared_at DESC, o.rkey DESC, o.collection DESC, o.claim_id DESC),
           urls   AS (PARTITION BY o.link_id, o.did ORDER BY o.url = '', o.shared_at DESC, o.rkey DESC, o.collection DESC, o.claim_id DESC)
), votes AS MATERIALIZED (
    SELECT l.link_id, l.did,
           min(l.title_claim) FILTER (WHERE l.vote <> '')                                              AS title_claim,
           min(l.shared_at) FILTER (WHERE l.title = l.vote AND l.vote <> '')                           AS title_at,
           (array_agg(l.key ORDER BY l.shared_at, l.key) FILTER (WHERE l.title = l.vote AND l.vote <> ''))[1] AS title_key,
           min(l.url_claim) FILTER (WHERE l.spelling <> '')                                            AS url_claim,
           min(l.shared_at) FILTER (WHERE l.url = l.spelling AND l.spelling <> '')                     AS url_at,
           (array_agg(l.key ORDER BY l.shared_at, l.key) FILTER (WHERE l.url = l.spelling AND l.spelling <> ''))[1] AS url_key
    FROM latest AS l
    GROUP BY l.link_id, l.did
), v AS MATERIALIZED (
    SELECT coalesce(t.claim_id, u.claim_id) AS claim_id, coalesce(t.link_id, u.link_id) AS link_id,
           coalesce(t.n, 0) AS titles, t.at AS title_at, t.uri AS title_from, coalesce(u.n, 0) AS urls, u.at AS url_at, u.uri AS url_from
    FROM (
        SELECT f.title_claim AS claim_id, f.link_id, count(*)::int AS n, min(f.title_at) AS at,
               (array_agg('at://' || f.did || '/' || f.title_key
                   ORDER BY f.title_at, 'at://' || f.did || '/' || f.title_key COLLATE "C"))[1] AS uri
        FROM votes AS f WHERE true AND f.title_claim IS NOT NULL GROUP BY f.title_claim, f.link_id
    ) AS t
    FULL JOIN (
        SELECT f.url_claim AS claim_id, f.link_id, count(*)::int AS n, min(f.url_at) AS at,
               (array_agg('at://' || f.did || '/' || f.url_key
                   ORDER BY f.url_at, 'at://' || f.did || '/' || f.url_key COLLATE "C"))[1] AS uri
        FROM votes AS f WHERE true AND f.url_claim IS NOT NULL GROUP BY f.url_claim, f.link_id
    ) AS u ON u.claim_id = t.claim_id AND u.link_id = t.link_id),
pages AS (
    SELECT DISTINCT ON (g.link_id) g.link_id, g.title, g.description, g.address
    FROM (
        SELECT c.link_id, c.title, c.description, c.address, c.fetched_at, c.link_id AS of, 1 AS n
        FROM cards AS c JOIN links AS m ON m.id = c.link_id WHERE c.link_id = ANY ($2) AND m.merged_into IS NULL AND c.title <> '' AND c.status = '' AND NOT  coalesce((SELECT true FROM walls AS w WHERE w.title_group = c.title_group), false) 
      AND (c.same_site OR m.merged_into IS NOT NULL
          AND EXISTS (SELECT FROM link_merges AS g WHERE g.link_id = m.id AND g.split_at IS NULL AND g.why <> 'by hand'))
        UNION ALL
        SELECT m.merged_into, c.title, c.description, c.address, c.fetched_at, c.link_id, 2
        FROM links AS m JOIN cards AS c ON c.link_id = m.id
        WHERE m.merged_into = ANY ($2) AND m.merged_into IS NOT NULL AND c.title <> '' AND c.status = '' AND NOT  coalesce((SELECT true FROM walls AS w WHERE w.title_group = c.title_group), false) 
      AND (c.same_site OR m.merged_into IS NOT NULL
          AND EXISTS (SELECT FROM link_merges AS g WHERE g.link_id = m.id AND g.split_at IS NULL AND g.why <> 'by hand'))
    ) AS g
    ORDER BY g.link_id, g.n, g.fetched_at, g.of
), 
c AS (
    SELECT v.claim_id, v.link_id, CASE WHEN coalesce((SELECT true FROM walls AS w WHERE w.title_group = c.title_group), false) THEN 0 ELSE v.titles END AS titles, v.title_at, v.title_from, v.urls, v.url_at, v.url_from,
           c.url, c.site, c.title, coalesce(nullif(c.title_key, ''), c.title) AS key, c.description, c.image
    FROM v JOIN claims AS c ON c.id = v.claim_id
), variants AS (
    SELECT h.*, CASE WHEN h.cut AND char_length(h.whole) >= 8
        AND starts_with(h.longer, h.whole) THEN split_part(h.longer, E'\n', 2) ELSE h.same END AS variant
    FROM (
        SELECT h.*, min(CASE WHEN NOT h.cut THEN h.whole || E'\n' || h.same END)
                    OVER (PARTITION BY h.link_id ORDER BY h.whole DESC, h.cut ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS longer
        FROM (
            SELECT h.*, CASE WHEN bool_or(h.whole = h.head AND NOT h.cut) OVER (PARTITION BY h.link_id, h.head)
                THEN h.head ELSE h.whole END AS same
            FROM (
                SELECT c.*, c.key LIKE '%…' AS cut, c.key LIKE E'%\n%' AS named, split_part(rtrim(c.key, '…'), E'\n', 1) AS head,
                       rtrim(replace(rtrim(c.key, '…'), E'\n', ' ')) AS whole
                FROM c WHERE c.titles > 0
            ) AS h
        ) AS h
    ) AS h
), best AS MATERIALIZED (
    SELECT DISTINCT ON (g.link_id) g.link_id, g.variant
    FROM (
        SELECT c.link_id, c.variant, sum(c.titles) AS n, min(c.title_at) AS at,
            (array_agg(c.title_from ORDER BY c.title_at, c.title_from COLLATE "C"))[1] AS uri
        FROM variants AS c GROUP BY c.link_id, c.variant
    ) AS g
    ORDER BY g.link_id, g.n DESC, g.at, g.uri COLLATE "C"
), voters AS (
    SELECT c.* FROM variants AS c JOIN best AS b ON b.link_id = c.link_id AND b.variant = c.variant
), title AS MATERIALIZED (
    SELECT DISTINCT ON (g.link_id) g.link_id, g.title, g.uri
    FROM (
        SELECT c.link_id, c.title, bool_and(c.cut) AS cut, bool_and(c.named) AS named, sum(c.titles) AS n, min(c.title_at) AS at,
               (array_agg(c.title_from ORDER BY c.title_at, c.title_from COLLATE "C"))[1] AS uri
        FROM voters AS c GROUP BY c.link_id, c.title
    ) AS g
    ORDER BY g.link_id, g.cut, g.title IN (upper(g.title), lower(g.title)) AND upper(g.title) <> lower(g.title), g.named, g.n DESC,
        g.at, g.uri COLLATE "C"
), description AS (
    SELECT DISTINCT ON (g.link_id) g.link_id, g.description
    FROM (
        SELECT c.link_id, c.description, sum(c.titles) AS n, min(c.title_at) AS at,
            (array_agg(c.title_from ORDER BY c.title_at, c.title_from COLLATE "C"))[1] AS uri
        FROM voters AS c WHERE c.description <> '' GROUP BY c.link_id, c.description
    ) AS g
    ORDER BY g.link_id, g.n DESC, g.at, g.uri COLLATE "C"
), picture AS (
    SELECT DISTINCT ON (g.link_id) g.link_id, 'blob:' || split_part(g.uri, '/', 3) || '/' || g.image AS image
    FROM (
        SELECT c.link_id, c.image, sum(c.titles) AS n, min(c.title_at) AS at,
            (array_agg(c.title_from ORDER BY c.title_at, c.title_from COLLATE "C"))[1] AS uri
        FROM voters AS c WHERE c.image <> '' GROUP BY c.link_id, c.image
    ) AS g
    ORDER BY g.link_id, g.n DESC, g.at, g.uri COLLATE "C"
), spelling AS MATERIALIZED (
    SELECT DISTINCT ON (g.link_id) g.link_id, g.url, g.site
    FROM (
        SELECT c.link_id, c.url, min(c.site) AS site, sum(c.urls) AS n, min(c.url_at) AS at,
            (array_agg(c.url_from ORDER BY c.url_at, c.url_from COLLATE "C"))[1] AS uri
        FROM c WHERE c.urls > 0 GROUP BY c.link_id, c.url
    ) AS g
    ORDER BY g.link_id, g.n DESC, starts_with(g.url, 'https:') DESC, g.at, g.uri COLLATE "C"
), chosen AS MATERIALIZED (
    SELECT k.link_id AS link, coalesce(u.url, '') AS url, coalesce(u.site, '') AS site, coalesce(g.title, t.title, '') AS title,
           coalesce(nullif(g.description, ''), d.description, '') AS description, coalesce(p.image, '') AS image,
               coalesce(g.address, t.uri, '') AS "from"
    FROM (SELECT c.link_id FROM c UNION SELECT g.link_id FROM pages AS g) AS k
    LEFT JOIN pages AS g ON g.link_id = k.link_id
    LEFT JOIN spelling AS u ON u.link_id = k.link_id
    LEFT JOIN title AS t ON t.link_id = k.link_id
    LEFT JOIN description AS d ON d.link_id = k.link_id
    LEFT JOIN picture AS p ON p.link_id = k.link_id
)
SELECT * FROM chosen;

-- queueHeadlines
WITH v AS MATERIALIZED (SELECT v.* FROM claim_votes AS v WHERE v.link_id = ANY ($1)),
pages AS (
    SELECT DISTINCT ON (g.link_id) g.link_id, g.title, g.description, g.address
    FROM (
        SELECT c.link_id, c.title, c.description, c.address, c.fetched_at, c.link_id AS of, 1 AS n
        FROM cards AS c JOIN links AS m ON m.id = c.link_id WHERE c.link_id = ANY ($1) AND m.merged_into IS NULL AND c.title <> '' AND c.status = '' AND NOT  coalesce((SELECT true FROM walls AS w WHERE w.title_group = c.title_group), false) 
      AND (c.same_site OR m.merged_into IS NOT NULL
          AND EXISTS (SELECT FROM link_merges AS g WHERE g.link_id = m.id AND g.split_at IS NULL AND g.why <> 'by hand'))
        UNION ALL
        SELECT m.merged_into, c.title, c.description, c.address, c.fetched_at, c.link_id, 2
        FROM links AS m JOIN cards AS c ON c.link_id = m.id
        WHERE m.merged_into = ANY ($1) AND m.merged_into IS NOT NULL AND c.title <> '' AND c.status = '' AND NOT  coalesce((SELECT true FROM walls AS w WHERE w.title_group = c.title_group), false) 
      AND (c.same_site OR m.merged_into IS NOT NULL
          AND EXISTS (SELECT FROM link_merges AS g WHERE g.link_id = m.id AND g.split_at IS NULL AND g.why <> 'by hand'))
    ) AS g
    ORDER BY g.link_id, g.n, g.fetched_at, g.of
), 
c AS (
    SELECT v.claim_id, v.link_id, CASE WHEN coalesce((SELECT true FROM walls AS w WHERE w.title_group = c.title_group), false) THEN 0 ELSE v.titles END AS titles, v.title_at, v.title_from, v.urls, v.url_at, v.url_from,
           c.url, c.site, c.title, coalesce(nullif(c.title_key, ''), c.title) AS key, c.description, c.image
    FROM v JOIN claims AS c ON c.id = v.claim_id
), variants AS (
    SELECT h.*, CASE WHEN h.cut AND char_length(h.whole) >= 8
        AND starts_with(h.longer, h.whole) THEN split_part(h.longer, E'\n', 2) ELSE h.same END AS variant
    FROM (
        SELECT h.*, min(CASE WHEN NOT h.cut THEN h.whole || E'\n' || h.same END)
                    OVER (PARTITION BY h.link_id ORDER BY h.whole DESC, h.cut ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS longer
        FROM (
            SELECT h.*, CASE WHEN bool_or(h.whole = h.head AND NOT h.cut) OVER (PARTITION BY h.link_id, h.head)
                THEN h.head ELSE h.whole END AS same
            FROM (
                SELECT c.*, c.key LIKE '%…' AS cut, c.key LIKE E'%\n%' AS named, split_part(rtrim(c.key, '…'), E'\n', 1) AS head,
                       rtrim(replace(rtrim(c.key, '…'), E'\n', ' ')) AS whole
                FROM c WHERE c.titles > 0
            ) AS h
        ) AS h
    ) AS h
), best AS MATERIALIZED (
    SELECT DISTINCT ON (g.link_id) g.link_id, g.variant
    FROM (
        SELECT c.link_id, c.variant, sum(c.titles) AS n, min(c.title_at) AS at,
            (array_agg(c.title_from ORDER BY c.title_at, c.title_from COLLATE "C"))[1] AS uri
        FROM variants AS c GROUP BY c.link_id, c.variant
    ) AS g
    ORDER BY g.link_id, g.n DESC, g.at, g.uri COLLATE "C"
), voters AS (
    SELECT c.* FROM variants AS c JOIN best AS b ON b.link_id = c.link_id AND b.variant = c.variant
), title AS MATERIALIZED (
    SELECT DISTINCT ON (g.link_id) g.link_id, g.title, g.uri
    FROM (
        SELECT c.link_id, c.title, bool_and(c.cut) AS cut, bool_and(c.named) AS named, sum(c.titles) AS n, min(c.title_at) AS at,
               (array_agg(c.title_from ORDER BY c.title_at, c.title_from COLLATE "C"))[1] AS uri
        FROM voters AS c GROUP BY c.link_id, c.title
    ) AS g
    ORDER BY g.link_id, g.cut, g.title IN (upper(g.title), lower(g.title)) AND upper(g.title) <> lower(g.title), g.named, g.n DESC,
        g.at, g.uri COLLATE "C"
), description AS (
    SELECT DISTINCT ON (g.link_id) g.link_id, g.description
    FROM (
        SELECT c.link_id, c.description, sum(c.titles) AS n, min(c.title_at) AS at,
            (array_agg(c.title_from ORDER BY c.title_at, c.title_from COLLATE "C"))[1] AS uri
        FROM voters AS c WHERE c.description <> '' GROUP BY c.link_id, c.description
    ) AS g
    ORDER BY g.link_id, g.n DESC, g.at, g.uri COLLATE "C"
), picture AS (
    SELECT DISTINCT ON (g.link_id) g.link_id, 'blob:' || split_part(g.uri, '/', 3) || '/' || g.image AS image
    FROM (
        SELECT c.link_id, c.image, sum(c.titles) AS n, min(c.title_at) AS at,
            (array_agg(c.title_from ORDER BY c.title_at, c.title_from COLLATE "C"))[1] AS uri
        FROM voters AS c WHERE c.image <> '' GROUP BY c.link_id, c.image
    ) AS g
    ORDER BY g.link_id, g.n DESC, g.at, g.uri COLLATE "C"
), spelling AS MATERIALIZED (
    SELECT DISTINCT ON (g.link_id) g.link_id, g.url, g.site
    FROM (
        SELECT c.link_id, c.url, min(c.site) AS site, sum(c.urls) AS n, min(c.url_at) AS at,
            (array_agg(c.url_from ORDER BY c.url_at, c.url_from COLLATE "C"))[1] AS uri
        FROM c WHERE c.urls > 0 GROUP BY c.link_id, c.url
    ) AS g
    ORDER BY g.link_id, g.n DESC, starts_with(g.url, 'https:') DESC, g.at, g.uri COLLATE "C"
), chosen AS MATERIALIZED (
    SELECT k.link_id AS link, coalesce(u.url, '') AS url, coalesce(u.site, '') AS site, coalesce(g.title, t.title, '') AS title,
           coalesce(nullif(g.description, ''), d.description, '') AS description, coalesce(p.image, '') AS image,
               coalesce(g.address, t.uri, '') AS "from"
    FROM (SELECT c.link_id FROM c UNION SELECT g.link_id FROM pages AS g) AS k
    LEFT JOIN pages AS g ON g.link_id = k.link_id
    LEFT JOIN spelling AS u ON u.link_id = k.link_id
    LEFT JOIN title AS t ON t.link_id = k.link_id
    LEFT JOIN description AS d ON d.link_id = k.link_id
    LEFT JOIN picture AS p ON p.link_id = k.link_id
)
UPDATE links AS l
SET url         = CASE WHEN h.url = '' THEN l.url ELSE h.url END,
    site        = CASE WHEN h.url = '' THEN l.site ELSE h.site END,
    title       = CASE WHEN h.title = '' THEN l.title ELSE h.title END,
    description = CASE WHEN h.title = '' THEN l.description ELSE h.description END,
    image       = CASE WHEN h.title = '' THEN l.image ELSE h.image END,
    card_from   = CASE WHEN h.title = '' THEN l.card_from ELSE h."from" END
FROM chosen AS h
WHERE l.id = h.link AND l.id = ANY ($1) AND (h.url <> '' AND (l.url, l.site) IS DISTINCT FROM (h.url, h.site)
    OR h.title <> '' AND (l.title, l.description, l.image, l.card_from) IS DISTINCT FROM (h.title, h.description, h.image, h."from"));

-- queueDropCards
UPDATE links AS l SET title = '', description = '', image = '', card_from = ''
WHERE l.id = ANY ($1) AND l.title <> ''
  AND NOT EXISTS (SELECT FROM claim_votes AS v WHERE v.link_id = l.id AND v.titles > 0 AND NOT coalesce((SELECT true FROM walls AS w WHERE w.title_group = v.title_group), false) OFFSET 0) AND NOT (
(EXISTS (SELECT FROM cards AS c JOIN links AS m ON m.id = c.link_id
    WHERE c.link_id = l.id AND m.merged_into IS NULL AND c.title <> '' AND c.status = '' AND NOT  coalesce((SELECT true FROM walls AS w WHERE w.title_group = c.title_group), false) 
      AND (c.same_site OR m.merged_into IS NOT NULL
          AND EXISTS (SELECT FROM link_merges AS g WHERE g.link_id = m.id AND g.split_at IS NULL AND g.why <> 'by hand')))
    OR EXISTS (SELECT FROM links AS m JOIN cards AS c ON c.link_id = m.id WHERE m.merged_into = l.id AND c.title <> '' AND c.status = '' AND NOT  coalesce((SELECT true FROM walls AS w WHERE w.title_group = c.title_group), false) 
      AND (c.same_site OR m.merged_into IS NOT NULL
          AND EXISTS (SELECT FROM link_merges AS g WHERE g.link_id = m.id AND g.split_at IS NULL AND g.why <> 'by hand')))) OR l.card_from NOT LIKE 'http%' AND (l.kept_at IS NOT NULL OR EXISTS (
    SELECT FROM judged_shares AS s JOIN claims AS c ON c.id = s.claim_id
    WHERE s.link_id = l.id AND s.subject_did IS NULL AND c.title <> '' AND NOT coalesce((SELECT true FROM walls AS w WHERE w.title_group = c.title_group), false) AND s.why IS NULL)));

-- queueLockPages
SELECT FROM links AS l WHERE l.id = ANY ($1) AND (
(EXISTS (SELECT FROM cards AS c JOIN links AS m ON m.id = c.link_id
    WHERE c.link_id = l.id AND m.merged_into IS NULL AND c.title <> '' AND c.status = '' AND NOT  coalesce((SELECT true FROM walls AS w WHERE w.title_group = c.title_group), false) 
      AND (c.same_site OR m.merged_into IS NOT NULL
          AND EXISTS (SELECT FROM link_merges AS g WHERE g.link_id = m.id AND g.split_at IS NULL AND g.why <> 'by hand')))
    OR EXISTS (SELECT FROM links AS m JOIN cards AS c ON c.link_id = m.id WHERE m.merged_into = l.id AND c.title <> '' AND c.status = '' AND NOT  coalesce((SELECT true FROM walls AS w WHERE w.title_group = c.title_group), false) 
      AND (c.same_site OR m.merged_into IS NOT NULL
          AND EXISTS (SELECT FROM link_merges AS g WHERE g.link_id = m.id AND g.split_at IS NULL AND g.why <> 'by hand'))))) ORDER BY l.id FOR NO KEY UPDATE OF l;

-- queueCards
WITH k AS (SELECT * FROM unnest($1::bigint[], $2::smallint[]) AS k (link_id, sharers)), variants AS (
    SELECT k.link_id,
        o.link_id AS other
    FROM k JOIN claim_votes AS v ON v.link_id = k.link_id AND v.titles > 0 AND NOT coalesce((SELECT true FROM walls AS w WHERE w.title_group = v.title_group), false) 
    CROSS JOIN LATERAL (SELECT o.link_id FROM claim_votes AS o
            WHERE o.title_group = v.title_group AND o.link_id <> v.link_id AND o.titles > 0 LIMIT 3) AS o
    UNION
    SELECT k.link_id,
        m.counts_as
    FROM k JOIN claim_votes AS v ON v.link_id = k.link_id AND v.titles > 0 AND NOT coalesce((SELECT true FROM walls AS w WHERE w.title_group = v.title_group), false) 
    CROSS JOIN LATERAL (SELECT c.link_id FROM cards AS c
            WHERE c.title_group = v.title_group AND c.link_id <> v.link_id AND c.status = '' LIMIT 3) AS c
    JOIN links AS m ON m.id = c.link_id AND m.counts_as <> k.link_id
    UNION
    SELECT k.link_id, o.counts_as
    FROM k JOIN links AS l ON l.id = k.link_id AND substring(split_part(l.identity, '?', 1) FROM '[^/]*$') ~ '[0-9]{5}|[^-]-[^-]+-[^-]+-[^-]'
    CROSS JOIN LATERAL (SELECT o.counts_as FROM links AS o
        WHERE substring(split_part(o.identity, '?', 1) FROM '[^/]*$') = substring(split_part(l.identity, '?', 1) FROM '[^/]*$') AND substring(split_part(o.identity, '?', 1) FROM '[^/]*$') ~ '[0-9]{5}|[^-]-[^-]+-[^-]+-[^-]' AND o.site = l.site
            AND o.counts_as <> l.id LIMIT 3) AS o
), wanted AS (
    SELECT a.link_id, max(a.sharers) AS sharers
    FROM (
        SELECT k.link_id, k.sharers FROM k
        WHERE (k.sharers >= 5 OR k.link_id IN (SELECT a.link_id FROM variants AS a)
               OR k.sharers >= 2
                   AND NOT EXISTS (SELECT FROM claim_votes AS v WHERE v.link_id = k.link_id AND v.titles > 0 AND NOT coalesce((SELECT true FROM walls AS w WHERE w.title_group = v.title_group), false) ))
          AND NOT EXISTS (SELECT FROM cards AS c WHERE c.link_id = k.link_id AND (c.fetch_at IS NULL OR c.sharers >= k.sharers))
        UNION ALL
        SELECT a.other, coalesce((SELECT 2 FROM link_counts AS n WHERE n.link_id = a.other), 1)
        FROM variants AS a WHERE NOT EXISTS (SELECT FROM cards AS c WHERE c.link_id = a.other)
    ) AS a
    GROUP BY a.link_id
)
INSERT INTO cards AS c (link_id, sharers, fetch_at)
SELECT l.id, w.sharers, now()
FROM (SELECT * FROM wanted ORDER BY link_id) AS w
CROSS JOIN LATERAL (SELECT l.id FROM links AS l WHERE l.id = w.link_id AND l.merged_into IS NULL LIMIT 1 FOR KEY SHARE) AS l
ON CONFLICT (link_id) DO UPDATE SET sharers = greatest(c.sharers, excluded.sharers);

-- doubtful.judge
WITH asked AS (
    SELECT unnest($1::bigint[]) AS title_group
    UNION
    SELECT v.title_group
    FROM unnest($2::bigint[], $3::bigint[]) AS k (claim_id, link_id)
    JOIN claim_votes AS v ON v.claim_id = k.claim_id AND v.link_id = k.link_id
    WHERE v.title_group IS NOT NULL
), voted AS (
    SELECT v.* FROM asked AS a
    JOIN claim_votes AS v ON v.title_group = a.title_group AND v.titles > 0
), standing AS (
    SELECT p.title_group
    FROM (
        SELECT p.*, count(*) OVER (PARTITION BY p.title_group, p.did) AS of_one
        FROM (
            SELECT v.title_group, v.page, CASE WHEN bool_and(v.did <> '') AND min(v.did) = max(v.did) THEN min(v.did) END AS did
            FROM (
                SELECT v.title_group, CASE WHEN substring(split_part(l.identity, '?', 1) FROM '[^/]*$') ~ '[0-9]{5}|[^-]-[^-]+-[^-]+-[^-]' THEN substring(split_part(l.identity, '?', 1) FROM '[^/]*$') ELSE split_part(l.identity, '?', 1) END AS page,
                       CASE WHEN sum(v.titles) = 1 THEN split_part(min(v.title_from), '/', 3) ELSE '' END AS did
                FROM voted AS v JOIN links AS l ON l.id = v.link_id
                GROUP BY v.title_group, l.id
            ) AS v
            GROUP BY v.title_group, v.page
        ) AS p
    ) AS p
    GROUP BY p.title_group
    HAVING count(*) >= 3 AND count(*) - coalesce(max(p.of_one) FILTER (WHERE p.did IS NOT NULL), 0) >= 2
), gone AS (
    DELETE FROM walls AS w WHERE w.title_group IN (SELECT a.title_group FROM asked AS a EXCEPT SELECT s.title_group FROM standing AS s)
    RETURNING w.title_group
), new AS (
    INSERT INTO walls SELECT s.title_group FROM standing AS s ON CONFLICT DO NOTHING RETURNING title_group
)
SELECT title_group FROM gone UNION ALL SELECT title_group FROM new;

-- checkSharers
WITH k AS (
    SELECT f.did, f.link_id, f.at,
           CASE WHEN f.post_at > $1 THEN f.post_at END     AS post_at,
           CASE WHEN f.quote_at > $1 THEN f.quote_at END   AS quote_at,
           CASE WHEN f.repost_at > $1 THEN f.repost_at END AS repost_at
    FROM sharers AS f
    WHERE f.at > $1 AND f.link_id = ANY ($2)), t AS (
    SELECT s.did, s.link_id,
           max(s.shared_at)                                 AS at,
           max(s.shared_at) FILTER (WHERE s.how = 'post')   AS post_at,
           max(s.shared_at) FILTER (WHERE s.how = 'quote')  AS quote_at,
           max(s.shared_at) FILTER (WHERE s.how = 'repost') AS repost_at
    FROM judged_shares AS s
    WHERE s.shared_at > $1 AND s.link_id = ANY ($2) AND s.why IS NULL
    GROUP BY s.did, s.link_id)
SELECT link_id, did, coalesce(to_jsonb(k)::text, ''), coalesce(to_jsonb(t)::text, '')
FROM k FULL JOIN t USING (did, link_id)
WHERE k IS DISTINCT FROM t
ORDER BY 1, 2;

-- checkCounts
WITH k AS (
    SELECT c.link_id, c.sharers, c.in_1h, c.in_3h, c.in_6h, c.in_12h, c.in_24h, c.in_7d, c.last_at
    FROM nostr_counts AS c
    WHERE c.link_id = ANY ($2)), t AS (
    SELECT f.link_id                                                                      AS link_id,
           count(*)::int                                                                  AS sharers,
           (count(*) FILTER (WHERE f.at > $1::timestamptz - interval '1 hour'))::int      AS in_1h,
           (count(*) FILTER (WHERE f.at > $1::timestamptz - interval '3 hours'))::int     AS in_3h,
           (count(*) FILTER (WHERE f.at > $1::timestamptz - interval '6 hours'))::int     AS in_6h,
           (count(*) FILTER (WHERE f.at > $1::timestamptz - interval '12 hours'))::int    AS in_12h,
           (count(*) FILTER (WHERE f.at > $1::timestamptz - interval '24 hours'))::int    AS in_24h,
           (count(*) FILTER (WHERE f.at > $1::timestamptz - interval '168 hours'))::int   AS in_7d,
           max(f.at)                                                                      AS last_at
    FROM sharers AS f
    WHERE f.link_id = ANY ($2) AND f.did LIKE 'did:nostr:%' 
    GROUP BY f.link_id
    HAVING count(*) >= 2)
SELECT link_id, '', coalesce(to_jsonb(k)::text, ''), coalesce(to_jsonb(t)::text, '')
FROM k FULL JOIN t USING (link_id)
WHERE k IS DISTINCT FROM t
ORDER BY 1, 2;

-- checkVotes
WITH k AS (
    SELECT f.link_id, f.did, f.title_claim, f.title_at, f.title_key, f.url_claim, f.url_at, f.url_key FROM sharers AS f
    WHERE num_nonnulls(f.title_claim, f.url_claim) > 0 AND f.link_id = ANY ($2)), t AS (
    WITH own AS (
    SELECT s.did, s.link_id, s.claim_id, s.shared_at, s.collection, s.rkey, c.title,
        CASE WHEN s.named_id = s.link_id THEN c.url ELSE '' END AS url
    FROM judged_shares AS s
    JOIN claims AS c ON c.id = s.claim_id
    WHERE s.subject_did IS NULL AND s.shared_at > $1 AND s.link_id = ANY ($2) AND s.why IS NULL),
latest AS (
    SELECT o.*, o.collection || '/' || o.rkey AS key, first_value(o.claim_id) OVER titles AS title_claim,
        first_value(o.title) OVER titles AS vote,
           first_value(o.claim_id) OVER urls AS url_claim, first_value(o.url) OVER urls AS spelling
    FROM own AS o
    WINDOW titles AS (PARTITION BY o.link_id, o.did
        ORDER BY o.title = '', o.shared_at DESC, o.rkey DESC, o.collection DESC, o.claim_id DESC),
           urls   AS (PARTITION BY o.link_id, o.did ORDER BY o.url = '', o.shared_at DESC, o.rkey DESC, o.collection DESC, o.claim_id DESC)
), votes AS MATERIALIZED (
    SELECT l.link_id, l.did,
           min(l.title_claim) FILTER (WHERE l.vote <> '')                                              AS title_claim,
           min(l.shared_at) FILTER (WHERE l.title = l.vote AND l.vote <> '')                           AS title_at,
           (array_agg(l.key ORDER BY l.shared_at, l.key) FILTER (WHERE l.title = l.vote AND l.vote <> ''))[1] AS title_key,
           min(l.url_claim) FILTER (WHERE l.spelling <> '')                                            AS url_claim,
           min(l.shared_at) FILTER (WHERE l.url = l.spelling AND l.spelling <> '')                     AS url_at,
           (array_agg(l.key ORDER BY l.shared_at, l.key) FILTER (WHERE l.url = l.spelling AND l.spelling <> ''))[1] AS url_key
    FROM latest AS l
    GROUP BY l.link_id, l.did
)
    SELECT f.link_id, f.did, f.title_claim, f.title_at, f.title_key, f.url_claim, f.url_at, f.url_key FROM votes AS f
    WHERE num_nonnulls(f.title_claim, f.url_claim) > 0)
SELECT link_id, did, coalesce(to_jsonb(k)::text, ''), coalesce(to_jsonb(t)::text, '')
FROM k FULL JOIN t USING (did, link_id)
WHERE k IS DISTINCT FROM t AND coalesce(least(k.title_at, k.url_at) > $3, true)
ORDER BY 1, 2;

-- checkSums
WITH k AS (
    SELECT v.claim_id, v.link_id, v.titles, v.title_at, v.title_from, v.urls, v.url_at, v.url_from
    FROM claim_votes AS v
    WHERE v.link_id = ANY ($1)), t AS (
    SELECT coalesce(t.claim_id, u.claim_id) AS claim_id, coalesce(t.link_id, u.link_id) AS link_id,
           coalesce(t.n, 0) AS titles, t.at AS title_at, t.uri AS title_from, coalesce(u.n, 0) AS urls, u.at AS url_at, u.uri AS url_from
    FROM (
        SELECT f.title_claim AS claim_id, f.link_id, count(*)::int AS n, min(f.title_at) AS at,
               (array_agg('at://' || f.did || '/' || f.title_key
                   ORDER BY f.title_at, 'at://' || f.did || '/' || f.title_key COLLATE "C"))[1] AS uri
        FROM sharers AS f WHERE f.link_id = ANY ($1) AND f.title_claim IS NOT NULL GROUP BY f.title_claim, f.link_id
    ) AS t
    FULL JOIN (
        SELECT f.url_claim AS claim_id, f.link_id, count(*)::int AS n, min(f.url_at) AS at,
               (array_agg('at://' || f.did || '/' || f.url_key
                   ORDER BY f.url_at, 'at://' || f.did || '/' || f.url_key COLLATE "C"))[1] AS uri
        FROM sharers AS f WHERE f.link_id = ANY ($1) AND f.url_claim IS NOT NULL GROUP BY f.url_claim, f.link_id
    ) AS u ON u.claim_id = t.claim_id AND u.link_id = t.link_id)
SELECT link_id, '', coalesce(to_jsonb(k)::text, ''), coalesce(to_jsonb(t)::text, '')
FROM k FULL JOIN t USING (claim_id, link_id)
WHERE k IS DISTINCT FROM t
ORDER BY 1, 2;

-- checkWalls
WITH asked AS (
    SELECT v.title_group FROM claim_votes AS v WHERE v.title_group IS NOT NULL AND v.link_id = ANY ($1)
    UNION
    SELECT w.title_group FROM walls AS w WHERE $1::bigint[] IS NULL
), voted AS (
    SELECT v.* FROM claim_votes AS v WHERE v.title_group IN (SELECT a.title_group FROM asked AS a) AND v.titles > 0
), t AS MATERIALIZED (
    SELECT p.title_group
    FROM (
        SELECT p.*, count(*) OVER (PARTITION BY p.title_group, p.did) AS of_one
        FROM (
            SELECT v.title_group, v.page, CASE WHEN bool_and(v.did <> '') AND min(v.did) = max(v.did) THEN min(v.did) END AS did
            FROM (
                SELECT v.title_group, CASE WHEN substring(split_part(l.identity, '?', 1) FROM '[^/]*$') ~ '[0-9]{5}|[^-]-[^-]+-[^-]+-[^-]' THEN substring(split_part(l.identity, '?', 1) FROM '[^/]*$') ELSE split_part(l.identity, '?', 1) END AS page,
                       CASE WHEN sum(v.titles) = 1 THEN split_part(min(v.title_from), '/', 3) ELSE '' END AS did
                FROM voted AS v JOIN links AS l ON l.id = v.link_id
                GROUP BY v.title_group, l.id
            ) AS v
            GROUP BY v.title_group, v.page
        ) AS p
    ) AS p
    GROUP BY p.title_group
    HAVING count(*) >= 3 AND count(*) - coalesce(max(p.of_one) FILTER (WHERE p.did IS NOT NULL), 0) >= 2
)
SELECT coalesce((SELECT min(v.link_id) FROM claim_votes AS v WHERE v.title_group = a.title_group), 0), '',
       coalesce('the wall ' || k.title_group, ''), coalesce('the wall ' || t.title_group, '')
FROM asked AS a
LEFT JOIN walls AS k ON k.title_group = a.title_group
LEFT JOIN t ON t.title_group = a.title_group
WHERE (k.title_group IS NULL) <> (t.title_group IS NULL)
  AND NOT EXISTS (SELECT FROM claim_votes AS v WHERE v.title_group = a.title_group
                  AND NOT EXISTS (SELECT FROM links AS l WHERE l.id = v.link_id))
ORDER BY 1;

-- checkHeadlines
WITH v AS (
    SELECT v.* FROM claim_votes AS v WHERE v.link_id = ANY ($1)
),
pages AS (
    SELECT DISTINCT ON (g.link_id) g.link_id, g.title, g.description, g.address
    FROM (
        SELECT c.link_id, c.title, c.description, c.address, c.fetched_at, c.link_id AS of, 1 AS n
        FROM cards AS c JOIN links AS m ON m.id = c.link_id WHERE c.link_id = ANY ($1) AND m.merged_into IS NULL AND c.title <> '' AND c.status = '' AND NOT  coalesce((SELECT true FROM walls AS w WHERE w.title_group = c.title_group), false) 
      AND (c.same_site OR m.merged_into IS NOT NULL
          AND EXISTS (SELECT FROM link_merges AS g WHERE g.link_id = m.id AND g.split_at IS NULL AND g.why <> 'by hand'))
        UNION ALL
        SELECT m.merged_into, c.title, c.description, c.address, c.fetched_at, c.link_id, 2
        FROM links AS m JOIN cards AS c ON c.link_id = m.id
        WHERE m.merged_into = ANY ($1) AND m.merged_into IS NOT NULL AND c.title <> '' AND c.status = '' AND NOT  coalesce((SELECT true FROM walls AS w WHERE w.title_group = c.title_group), false) 
      AND (c.same_site OR m.merged_into IS NOT NULL
          AND EXISTS (SELECT FROM link_merges AS g WHERE g.link_id = m.id AND g.split_at IS NULL AND g.why <> 'by hand'))
    ) AS g
    ORDER BY g.link_id, g.n, g.fetched_at, g.of
), 
c AS (
    SELECT v.claim_id, v.link_id, CASE WHEN coalesce((SELECT true FROM walls AS w WHERE w.title_group = c.title_group), false) THEN 0 ELSE v.titles END AS titles, v.title_at, v.title_from, v.urls, v.url_at, v.url_from,
           c.url, c.site, c.title, coalesce(nullif(c.title_key, ''), c.title) AS key, c.description, c.image
    FROM v JOIN claims AS c ON c.id = v.claim_id
), variants AS (
    SELECT h.*, CASE WHEN h.cut AND char_length(h.whole) >= 8
        AND starts_with(h.longer, h.whole) THEN split_part(h.longer, E'\n', 2) ELSE h.same END AS variant
    FROM (
        SELECT h.*, min(CASE WHEN NOT h.cut THEN h.whole || E'\n' || h.same END)
                    OVER (PARTITION BY h.link_id ORDER BY h.whole DESC, h.cut ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS longer
        FROM (
            SELECT h.*, CASE WHEN bool_or(h.whole = h.head AND NOT h.cut) OVER (PARTITION BY h.link_id, h.head)
                THEN h.head ELSE h.whole END AS same
            FROM (
                SELECT c.*, c.key LIKE '%…' AS cut, c.key LIKE E'%\n%' AS named, split_part(rtrim(c.key, '…'), E'\n', 1) AS head,
                       rtrim(replace(rtrim(c.key, '…'), E'\n', ' ')) AS whole
                FROM c WHERE c.titles > 0
            ) AS h
        ) AS h
    ) AS h
), best AS MATERIALIZED (
    SELECT DISTINCT ON (g.link_id) g.link_id, g.variant
    FROM (
        SELECT c.link_id, c.variant, sum(c.titles) AS n, min(c.title_at) AS at,
            (array_agg(c.title_from ORDER BY c.title_at, c.title_from COLLATE "C"))[1] AS uri
        FROM variants AS c GROUP BY c.link_id, c.variant
    ) AS g
    ORDER BY g.link_id, g.n DESC, g.at, g.uri COLLATE "C"
), voters AS (
    SELECT c.* FROM variants AS c JOIN best AS b ON b.link_id = c.link_id AND b.variant = c.variant
), title AS MATERIALIZED (
    SELECT DISTINCT ON (g.link_id) g.link_id, g.title, g.uri
    FROM (
        SELECT c.link_id, c.title, bool_and(c.cut) AS cut, bool_and(c.named) AS named, sum(c.titles) AS n, min(c.title_at) AS at,
               (array_agg(c.title_from ORDER BY c.title_at, c.title_from COLLATE "C"))[1] AS uri
        FROM voters AS c GROUP BY c.link_id, c.title
    ) AS g
    ORDER BY g.link_id, g.cut, g.title IN (upper(g.title), lower(g.title)) AND upper(g.title) <> lower(g.title), g.named, g.n DESC,
        g.at, g.uri COLLATE "C"
), description AS (
    SELECT DISTINCT ON (g.link_id) g.link_id, g.description
    FROM (
        SELECT c.link_id, c.description, sum(c.titles) AS n, min(c.title_at) AS at,
            (array_agg(c.title_from ORDER BY c.title_at, c.title_from COLLATE "C"))[1] AS uri
        FROM voters AS c WHERE c.description <> '' GROUP BY c.link_id, c.description
    ) AS g
    ORDER BY g.link_id, g.n DESC, g.at, g.uri COLLATE "C"
), picture AS (
    SELECT DISTINCT ON (g.link_id) g.link_id, 'blob:' || split_part(g.uri, '/', 3) || '/' || g.image AS image
    FROM (
        SELECT c.link_id, c.image, sum(c.titles) AS n, min(c.title_at) AS at,
            (array_agg(c.title_from ORDER BY c.title_at, c.title_from COLLATE "C"))[1] AS uri
        FROM voters AS c WHERE c.image <> '' GROUP BY c.link_id, c.image
    ) AS g
    ORDER BY g.link_id, g.n DESC, g.at, g.uri COLLATE "C"
), spelling AS MATERIALIZED (
    SELECT DISTINCT ON (g.link_id) g.link_id, g.url, g.site
    FROM (
        SELECT c.link_id, c.url, min(c.site) AS site, sum(c.urls) AS n, min(c.url_at) AS at,
            (array_agg(c.url_from ORDER BY c.url_at, c.url_from COLLATE "C"))[1] AS uri
        FROM c WHERE c.urls > 0 GROUP BY c.link_id, c.url
    ) AS g
    ORDER BY g.link_id, g.n DESC, starts_with(g.url, 'https:') DESC, g.at, g.uri COLLATE "C"
), chosen AS MATERIALIZED (
    SELECT k.link_id AS link, coalesce(u.url, '') AS url, coalesce(u.site, '') AS site, coalesce(g.title, t.title, '') AS title,
           coalesce(nullif(g.description, ''), d.description, '') AS description, coalesce(p.image, '') AS image,
               coalesce(g.address, t.uri, '') AS "from"
    FROM (SELECT c.link_id FROM c UNION SELECT g.link_id FROM pages AS g) AS k
    LEFT JOIN pages AS g ON g.link_id = k.link_id
    LEFT JOIN spelling AS u ON u.link_id = k.link_id
    LEFT JOIN title AS t ON t.link_id = k.link_id
    LEFT JOIN description AS d ON d.link_id = k.link_id
    LEFT JOIN picture AS p ON p.link_id = k.link_id
)
SELECT l.id, '',
    jsonb_build_object('url', l.url, 'site', l.site, 'title', l.title, 'description', l.description, 'image', l.image,
        'card_from', l.card_from)::text,
       jsonb_build_object('url', h.url, 'site', h.site, 'title', h.title, 'description', h.description, 'image', h.image,
           'card_from', h."from")::text
FROM chosen AS h
JOIN links AS l ON l.id = h.link
WHERE (h.url <> '' AND (l.url, l.site) IS DISTINCT FROM (h.url, h.site)
    OR h.title <> '' AND (l.title, l.description, l.image, l.card_from) IS DISTINCT FROM (h.title, h.description, h.image, h."from"))
  AND NOT EXISTS (SELECT FROM v WHERE v.link_id = l.id AND NOT EXISTS (SELECT FROM claims AS c WHERE c.id = v.claim_id))
ORDER BY 1;

-- rankScan.ordered
WITH lowest AS (
    SELECT min(f.level) AS level FROM (
        SELECT v.level FROM generate_series(width_bucket($3::int, '{2,8,32,128,512,2048,8192,32768,131072,524288,2097152}'), 1, -1) AS v (level)
        CROSS JOIN LATERAL (SELECT
    FROM link_counts AS c
    WHERE c.level_6h >= 1 AND c.in_6h >= $1 AND c.level_6h >= width_bucket($1::int, '{2,8,32,128,512,2048,8192,32768,131072,524288,2097152}')
      AND ($2 = '' OR (SELECT l.site FROM links AS l WHERE l.id = c.link_id) = $2)
      AND (c.in_6h, c.last_at, c.link_id) < ($3, $4, $5) AND c.level_6h = v.level LIMIT $6) AS c
        LIMIT $6
    ) AS f
)
SELECT c.link_id, c.in_6h, c.speed, c.last_at, NULL::text[]
    FROM link_counts AS c
    WHERE c.level_6h >= 1 AND c.in_6h >= $1 AND c.level_6h >= width_bucket($1::int, '{2,8,32,128,512,2048,8192,32768,131072,524288,2097152}')
      AND ($2 = '' OR (SELECT l.site FROM links AS l WHERE l.id = c.link_id) = $2)
      AND (c.in_6h, c.last_at, c.link_id) < ($3, $4, $5) AND c.level_6h BETWEEN (SELECT l.level FROM lowest AS l) AND width_bucket($3::int, '{2,8,32,128,512,2048,8192,32768,131072,524288,2097152}')
ORDER BY c.in_6h DESC, c.last_at DESC, c.link_id DESC
LIMIT $6;

-- rankScan.ordered: some links of Nostr
SELECT c.link_id, c.in_6h, c.speed, c.last_at, NULL::text[]
    FROM nostr_counts AS c
    WHERE c.level_6h >= 1 AND c.in_6h >= $1 AND c.level_6h >= width_bucket($1::int, '{2,8,32,128,512,2048,8192,32768,131072,524288,2097152}')
      AND ($2 = '' OR (SELECT l.site FROM links AS l WHERE l.id = c.link_id) = $2)
      AND (c.in_6h, c.last_at, c.link_id) < ($3, $4, $5) AND c.link_id = ANY ($7)
ORDER BY c.in_6h DESC, c.last_at DESC, c.link_id DESC
LIMIT $6;

-- rankScan.singles
SELECT s.link_id, coalesce(c.n, 1), 0, s.at, NULL::text[]
FROM sharers AS s 
LEFT JOIN LATERAL (SELECT c.in_6h AS single, c.in_6h AS n FROM link_counts AS c
    WHERE c.link_id = s.link_id LIMIT 1) AS c ON true
WHERE s.at > $1 AND s.at <= $2 AND (s.at, s.link_id) < ($2, $3) AND coalesce(c.single, 1) = 1 AND coalesce(c.n, 1) >= $4
    AND true 
  AND ($5 = '' OR (SELECT l.site FROM links AS l WHERE l.id = s.link_id) = $5)
ORDER BY s.at DESC, s.link_id DESC
LIMIT $6;

-- rankScan.singles: some links of Nostr
SELECT s.link_id, coalesce(c.n, 1), 0, s.at, NULL::text[]
FROM unnest($7::bigint[]) AS k (id) 
LEFT JOIN LATERAL (SELECT c.in_6h AS single, c.in_6h AS n FROM nostr_counts AS c
    WHERE c.link_id = k.id LIMIT 1) AS c ON true
CROSS JOIN LATERAL (SELECT s.link_id, s.did, s.at FROM sharers AS s
    WHERE coalesce(c.single, 1) = 1 AND s.link_id = k.id AND s.at > $1 OFFSET 0) AS s
WHERE s.at > $1 AND s.at <= $2 AND (s.at, s.link_id) < ($2, $3) AND coalesce(c.single, 1) = 1 AND coalesce(c.n, 1) >= $4
    AND s.did LIKE 'did:nostr:%' 
  AND ($5 = '' OR (SELECT l.site FROM links AS l WHERE l.id = s.link_id) = $5)
ORDER BY s.at DESC, s.link_id DESC
LIMIT $6;

-- rankScan.newest
SELECT l.id, coalesce(c.n, 1), 0, coalesce(c.last_at, s.at), NULL::text[]
FROM links AS l
LEFT JOIN LATERAL (SELECT c.in_6h AS n, c.last_at FROM link_counts AS c
    WHERE c.link_id = l.id LIMIT 1) AS c ON true
LEFT JOIN LATERAL (SELECT s.at FROM sharers AS s
    WHERE c.n IS NULL AND s.link_id = l.id AND s.at > $1 AND true LIMIT 1) AS s ON true
WHERE l.id < $2 AND coalesce(c.n, CASE WHEN s.at IS NULL THEN 0 ELSE 1 END) >= $3 AND ($4 = '' OR l.site = $4)
ORDER BY l.id DESC
LIMIT $5;

-- rankScan.newest: of Nostr
SELECT l.id, coalesce(c.n, 1), 0, coalesce(c.last_at, s.at), NULL::text[]
FROM (
    SELECT d.id, (SELECT l.site FROM links AS l WHERE l.id = d.id) AS site
    FROM (SELECT DISTINCT s.link_id AS id FROM sharers AS s
        WHERE s.link_id < $2 AND s.did LIKE 'did:nostr:%' ORDER BY s.link_id DESC) AS d) AS l
LEFT JOIN LATERAL (SELECT c.in_6h AS n, c.last_at FROM nostr_counts AS c
    WHERE c.link_id = l.id LIMIT 1) AS c ON true
LEFT JOIN LATERAL (SELECT s.at FROM sharers AS s
    WHERE c.n IS NULL AND s.link_id = l.id AND s.at > $1 AND s.did LIKE 'did:nostr:%' LIMIT 1) AS s ON true
WHERE l.id < $2 AND coalesce(c.n, CASE WHEN s.at IS NULL THEN 0 ELSE 1 END) >= $3 AND ($4 = '' OR l.site = $4)
ORDER BY l.id DESC
LIMIT $5;

-- rankScan.recount: of one way
SELECT s.link_id, count(*) FILTER (WHERE greatest(s.post_at, s.quote_at) > $2), (24 * count(*) FILTER (WHERE greatest(s.post_at, s.quote_at) > $3::timestamptz - interval '1 hours') + 8 * count(*) FILTER (WHERE greatest(s.post_at, s.quote_at) > $3::timestamptz - interval '3 hours') + 4 * count(*) FILTER (WHERE greatest(s.post_at, s.quote_at) > $3::timestamptz - interval '6 hours') + 2 * count(*) FILTER (WHERE greatest(s.post_at, s.quote_at) > $3::timestamptz - interval '12 hours') + 1 * count(*) FILTER (WHERE greatest(s.post_at, s.quote_at) > $3::timestamptz - interval '24 hours')), max(greatest(s.post_at, s.quote_at)), NULL::text[]
FROM sharers AS s
WHERE s.link_id = ANY ($1) AND s.at > $4 AND greatest(s.post_at, s.quote_at) > $4
  AND (s.link_id, s.did) NOT IN (SELECT * FROM unnest($5::bigint[], $6::text[])) AND s.did LIKE 'did:nostr:%' 
GROUP BY s.link_id;

-- reader.recount
WITH pairs AS (
    SELECT s.link_id, s.did, max(s.shared_at) AS at
    FROM judged_shares AS s
    WHERE s.shared_at > $4 AND s.shared_at <= $5 AND s.why IS NULL
      AND ($6::text[] IS NULL OR s.how = ANY ($6)) AND true 
      AND ($7::bigint[] IS NULL OR EXISTS (SELECT FROM watch_members AS w WHERE w.did = s.did AND w.watch_id = ANY ($7)))
    GROUP BY s.link_id, s.did
), links_of AS (
    SELECT p.link_id                             AS id,
           count(*) FILTER (WHERE p.at > $8)     AS sharers,
           (24 * count(*) FILTER (WHERE p.at > $9::timestamptz - interval '1 hours') + 8 * count(*) FILTER (WHERE p.at > $9::timestamptz - interval '3 hours') + 4 * count(*) FILTER (WHERE p.at > $9::timestamptz - interval '6 hours') + 2 * count(*) FILTER (WHERE p.at > $9::timestamptz - interval '12 hours') + 1 * count(*) FILTER (WHERE p.at > $9::timestamptz - interval '24 hours'))         AS speed,
           max(p.at)                             AS last,
           '{}'::text[]                          AS dids
    FROM pairs AS p
    GROUP BY p.link_id
)
SELECT k.id, k.sharers, k.speed, k.last, k.dids
FROM (
    SELECT * FROM links_of AS c
    WHERE ($10::text = '' OR EXISTS (SELECT FROM links AS l WHERE l.id = c.id AND l.site = $10))
      AND ($11::bigint[] IS NULL OR c.id = ANY ($11))
  AND c.sharers >= $14 AND ($15::text <> 'speed' OR c.speed > 0)
  AND ($16::boolean OR (CASE $15 WHEN 'newest' THEN 0 WHEN 'speed' THEN c.speed ELSE c.sharers END, CASE $15 WHEN 'newest' THEN 'epoch' ELSE c.last END, c.id) < ($17::bigint, $18::timestamptz, $19::bigint))
ORDER BY CASE $15 WHEN 'newest' THEN 0 WHEN 'speed' THEN c.speed ELSE c.sharers END DESC, CASE $15 WHEN 'newest' THEN 'epoch' ELSE c.last END DESC, c.id DESC
    OFFSET 0 -- the text is looked for in this order, until the page is full
) AS k
WHERE (NOT $12::boolean OR (7 & 1 > 0 AND EXISTS (SELECT FROM links AS l WHERE l.id = ANY (ARRAY(SELECT k.id UNION ALL SELECT m.id FROM links AS m WHERE m.merged_into = k.id)) AND l.identity || '' ILIKE $3::text)
    OR 7 & 2 > 0 AND EXISTS (
        SELECT FROM (SELECT array_agg(c.id) AS ids
            FROM (SELECT c.id, c.words FROM claims AS c WHERE c.link_id = ANY (ARRAY(SELECT k.id UNION ALL SELECT m.id FROM links AS m WHERE m.merged_into = k.id)) OFFSET 0) AS c
            WHERE c.words @@ $1::tsquery) AS c
        CROSS JOIN LATERAL (SELECT s.did, s.claim_id FROM shares AS s WHERE s.link_id = k.id AND c.ids IS NOT NULL OFFSET 0) AS s
        WHERE s.claim_id = ANY (c.ids) AND (SELECT u.why IS NULL FROM why_uncounted(s.did) AS u) )
    OR 7 & 2 > 0 AND EXISTS (
        SELECT FROM cards AS c JOIN links AS m ON m.id = c.link_id
        WHERE m.id = ANY (ARRAY(SELECT k.id UNION ALL SELECT m.id FROM links AS m WHERE m.merged_into = k.id)) AND c.words @@ $1::tsquery AND c.title <> '' AND c.status = '' AND NOT  coalesce((SELECT true FROM walls AS w WHERE w.title_group = c.title_group), false) 
      AND (c.same_site OR m.merged_into IS NOT NULL
          AND EXISTS (SELECT FROM link_merges AS g WHERE g.link_id = m.id AND g.split_at IS NULL AND g.why <> 'by hand')))
    OR 7 & 4 > 0 AND EXISTS (
        SELECT FROM ((SELECT s.collection, s.did, s.rkey, s.words FROM shares AS s WHERE s.rkey >= $2 AND s.link_id = k.id OFFSET 0)
    UNION ALL (SELECT s.collection, s.did, s.rkey, s.words FROM shares_default AS s WHERE s.rkey < $2 AND s.link_id = k.id OFFSET 0)) AS s
        WHERE s.words @@ $1::tsquery AND (SELECT u.why IS NULL FROM why_uncounted(s.did) AS u) AND CASE s.collection
    WHEN 'app.bsky.feed.post'
        THEN EXISTS (SELECT FROM posts AS p WHERE p.collection = 'app.bsky.feed.post' AND p.did = s.did AND p.rkey = s.rkey)
    ELSE EXISTS (SELECT FROM records_other AS p WHERE p.collection = s.collection AND p.did = s.did AND p.rkey = s.rkey) END
        AND NOT EXISTS (SELECT FROM profiles WHERE profiles.did = s.did AND profiles.withheld) )) )
LIMIT $13;

-- reader.recount: of watches
WITH pairs AS (
    SELECT s.link_id, s.did, max(s.shared_at) AS at
    FROM judged_shares AS s
    WHERE s.shared_at > $4 AND s.shared_at <= $5 AND s.why IS NULL
      AND ($6::text[] IS NULL OR s.how = ANY ($6)) AND true 
      AND ($7::bigint[] IS NULL OR EXISTS (SELECT FROM watch_members AS w WHERE w.did = s.did AND w.watch_id = ANY ($7)))
    GROUP BY s.link_id, s.did
), links_of AS (
    SELECT p.link_id                             AS id,
           count(*) FILTER (WHERE p.at > $8)     AS sharers,
           (24 * count(*) FILTER (WHERE p.at > $9::timestamptz - interval '1 hours') + 8 * count(*) FILTER (WHERE p.at > $9::timestamptz - interval '3 hours') + 4 * count(*) FILTER (WHERE p.at > $9::timestamptz - interval '6 hours') + 2 * count(*) FILTER (WHERE p.at > $9::timestamptz - interval '12 hours') + 1 * count(*) FILTER (WHERE p.at > $9::timestamptz - interval '24 hours'))         AS speed,
           max(p.at)                             AS last,
           (array_agg(p.did ORDER BY p.at DESC, p.did) FILTER (WHERE p.at > $8))[1:3]                          AS dids
    FROM pairs AS p
    GROUP BY p.link_id
)
SELECT k.id, k.sharers, k.speed, k.last, k.dids
FROM (
    SELECT * FROM links_of AS c
    WHERE ($10::text = '' OR EXISTS (SELECT FROM links AS l WHERE l.id = c.id AND l.site = $10))
      AND ($11::bigint[] IS NULL OR c.id = ANY ($11))
  AND c.sharers >= $14 AND ($15::text <> 'speed' OR c.speed > 0)
  AND ($16::boolean OR (CASE $15 WHEN 'newest' THEN 0 WHEN 'speed' THEN c.speed ELSE c.sharers END, CASE $15 WHEN 'newest' THEN 'epoch' ELSE c.last END, c.id) < ($17::bigint, $18::timestamptz, $19::bigint))
ORDER BY CASE $15 WHEN 'newest' THEN 0 WHEN 'speed' THEN c.speed ELSE c.sharers END DESC, CASE $15 WHEN 'newest' THEN 'epoch' ELSE c.last END DESC, c.id DESC
    OFFSET 0 -- the text is looked for in this order, until the page is full
) AS k
WHERE (NOT $12::boolean OR (7 & 1 > 0 AND EXISTS (SELECT FROM links AS l WHERE l.id = ANY (ARRAY(SELECT k.id UNION ALL SELECT m.id FROM links AS m WHERE m.merged_into = k.id)) AND l.identity || '' ILIKE $3::text)
    OR 7 & 2 > 0 AND EXISTS (
        SELECT FROM (SELECT array_agg(c.id) AS ids
            FROM (SELECT c.id, c.words FROM claims AS c WHERE c.link_id = ANY (ARRAY(SELECT k.id UNION ALL SELECT m.id FROM links AS m WHERE m.merged_into = k.id)) OFFSET 0) AS c
            WHERE c.words @@ $1::tsquery) AS c
        CROSS JOIN LATERAL (SELECT s.did, s.claim_id FROM shares AS s WHERE s.link_id = k.id AND c.ids IS NOT NULL OFFSET 0) AS s
        WHERE s.claim_id = ANY (c.ids) AND (SELECT u.why IS NULL FROM why_uncounted(s.did) AS u) )
    OR 7 & 2 > 0 AND EXISTS (
        SELECT FROM cards AS c JOIN links AS m ON m.id = c.link_id
        WHERE m.id = ANY (ARRAY(SELECT k.id UNION ALL SELECT m.id FROM links AS m WHERE m.merged_into = k.id)) AND c.words @@ $1::tsquery AND c.title <> '' AND c.status = '' AND NOT  coalesce((SELECT true FROM walls AS w WHERE w.title_group = c.title_group), false) 
      AND (c.same_site OR m.merged_into IS NOT NULL
          AND EXISTS (SELECT FROM link_merges AS g WHERE g.link_id = m.id AND g.split_at IS NULL AND g.why <> 'by hand')))
    OR 7 & 4 > 0 AND EXISTS (
        SELECT FROM ((SELECT s.collection, s.did, s.rkey, s.words FROM shares AS s WHERE s.rkey >= $2 AND s.link_id = k.id OFFSET 0)
    UNION ALL (SELECT s.collection, s.did, s.rkey, s.words FROM shares_default AS s WHERE s.rkey < $2 AND s.link_id = k.id OFFSET 0)) AS s
        WHERE s.words @@ $1::tsquery AND (SELECT u.why IS NULL FROM why_uncounted(s.did) AS u) AND CASE s.collection
    WHEN 'app.bsky.feed.post'
        THEN EXISTS (SELECT FROM posts AS p WHERE p.collection = 'app.bsky.feed.post' AND p.did = s.did AND p.rkey = s.rkey)
    ELSE EXISTS (SELECT FROM records_other AS p WHERE p.collection = s.collection AND p.did = s.did AND p.rkey = s.rkey) END
        AND NOT EXISTS (SELECT FROM profiles WHERE profiles.did = s.did AND profiles.withheld) )) )
LIMIT $13;

-- queueDescriptions: everyone
SELECT l.id, l.url, l.site, l.title, l.description, l.image, l.card_from, l.first_seen, a.at, f.dids, f.handles, f.unverified, f.names, f.avatars, f.withheld
FROM unnest($1::bigint[]) WITH ORDINALITY AS k (id, n)
JOIN links AS l ON l.id = k.id
CROSS JOIN LATERAL (SELECT s.did, s.shared_at AS at FROM judged_shares AS s
    WHERE s.link_id = k.id AND s.shared_at > $2 AND s.shared_at <= $3 AND ($4::text[] IS NULL OR s.how = ANY ($4)) AND s.why IS NULL AND true  ORDER BY s.shared_at DESC LIMIT 1) AS a
LEFT JOIN LATERAL (SELECT s.did, s.shared_at AS at FROM judged_shares AS s
    WHERE s.link_id = k.id AND s.shared_at > $2 AND s.shared_at <= $3 AND ($4::text[] IS NULL OR s.how = ANY ($4)) AND s.why IS NULL AND true  AND s.did <> a.did ORDER BY s.shared_at DESC LIMIT 1) AS b ON true
LEFT JOIN LATERAL (SELECT s.did, s.shared_at AS at FROM judged_shares AS s
    WHERE s.link_id = k.id AND s.shared_at > $2 AND s.shared_at <= $3 AND ($4::text[] IS NULL OR s.how = ANY ($4)) AND s.why IS NULL AND true  AND s.did <> a.did AND s.did <> b.did ORDER BY s.shared_at DESC LIMIT 1) AS c ON true
CROSS JOIN LATERAL (
    SELECT array_agg(f.did ORDER BY f.n)                        AS dids,
           array_agg(coalesce(p.handle, '') ORDER BY f.n)       AS handles,
           array_agg(coalesce(p.handle_unverified AND p.handle <> '', false) ORDER BY f.n) AS unverified,
           array_agg(coalesce(p.display_name, '') ORDER BY f.n) AS names,
           array_agg(coalesce(p.avatar, '') ORDER BY f.n)       AS avatars,
           array_agg( EXISTS (SELECT FROM profiles WHERE profiles.did = f.did AND profiles.withheld)  ORDER BY f.n) AS withheld
    FROM (VALUES (a.did, 1), (b.did, 2), (c.did, 3)) AS f (did, n)
    LEFT JOIN LATERAL (SELECT nullif(p.handle, 'handle.invalid') AS handle, p.handle_unverified, p.display_name, p.avatar
        FROM accounts AS p WHERE p.did = f.did LIMIT 1) AS p ON true
    WHERE f.did IS NOT NULL) AS f
ORDER BY k.n;

-- queueDescriptions: from the counts
SELECT l.id, l.url, l.site, l.title, l.description, l.image, l.card_from, l.first_seen, latest.at, f.dids, f.handles, f.unverified, f.names, f.avatars, f.withheld
FROM unnest($1::bigint[]) WITH ORDINALITY AS k (id, n)
JOIN links AS l ON l.id = k.id
CROSS JOIN LATERAL (
    SELECT array_agg(s.did ORDER BY s.at DESC) AS dids, max(s.at) AS at
    FROM (
        SELECT * FROM (
            SELECT s.did, s.at FROM sharers AS s
            WHERE s.link_id = k.id AND s.at > $2 AND (s.link_id, s.did) NOT IN (SELECT * FROM unnest($3::bigint[], $4::text[]))
                AND true 
            ORDER BY s.at DESC LIMIT 3
        ) AS s
        UNION ALL
        SELECT u.did, u.at FROM unnest($3::bigint[], $4::text[], $5::timestamptz[]) AS u (id, did, at)
        WHERE u.id = k.id AND u.at > $2 AND true 
        ORDER BY at DESC LIMIT 3
    ) AS s
) AS latest
CROSS JOIN LATERAL (
    SELECT array_agg(f.did ORDER BY f.n)                        AS dids,
           array_agg(coalesce(p.handle, '') ORDER BY f.n)       AS handles,
           array_agg(coalesce(p.handle_unverified AND p.handle <> '', false) ORDER BY f.n) AS unverified,
           array_agg(coalesce(p.display_name, '') ORDER BY f.n) AS names,
           array_agg(coalesce(p.avatar, '') ORDER BY f.n)       AS avatars,
           array_agg( EXISTS (SELECT FROM profiles WHERE profiles.did = f.did AND profiles.withheld)  ORDER BY f.n) AS withheld
    FROM unnest(latest.dids) WITH ORDINALITY AS f (did, n)
    LEFT JOIN LATERAL (SELECT nullif(p.handle, 'handle.invalid') AS handle, p.handle_unverified, p.display_name, p.avatar
        FROM accounts AS p WHERE p.did = f.did LIMIT 1) AS p ON true
    WHERE f.did IS NOT NULL) AS f
ORDER BY k.n;

-- queueDescriptions: members
SELECT l.id, l.url, l.site, l.title, l.description, l.image, l.card_from, l.first_seen, NULL::timestamptz, f.dids, f.handles, f.unverified, f.names, f.avatars, f.withheld
FROM unnest($1::bigint[]) WITH ORDINALITY AS k (id, n)
JOIN links AS l ON l.id = k.id
CROSS JOIN LATERAL (
    SELECT array_agg(f.did ORDER BY f.n)                        AS dids,
           array_agg(coalesce(p.handle, '') ORDER BY f.n)       AS handles,
           array_agg(coalesce(p.handle_unverified AND p.handle <> '', false) ORDER BY f.n) AS unverified,
           array_agg(coalesce(p.display_name, '') ORDER BY f.n) AS names,
           array_agg(coalesce(p.avatar, '') ORDER BY f.n)       AS avatars,
           array_agg( EXISTS (SELECT FROM profiles WHERE profiles.did = f.did AND profiles.withheld)  ORDER BY f.n) AS withheld
    FROM (
    SELECT f.did, f.n FROM unnest($2::bigint[], $3::text[]) WITH ORDINALITY AS f (id, did, n) WHERE f.id = k.id
    ) AS f
    LEFT JOIN LATERAL (SELECT nullif(p.handle, 'handle.invalid') AS handle, p.handle_unverified, p.display_name, p.avatar
        FROM accounts AS p WHERE p.did = f.did LIMIT 1) AS p ON true
    WHERE f.did IS NOT NULL) AS f
ORDER BY k.n;

-- queueGifts
SELECT k.id, g.gift FROM unnest($1::bigint[]) AS k (id)
CROSS JOIN LATERAL (
    SELECT s.gift FROM shares AS s
    WHERE s.link_id = k.id AND s.gift IS NOT NULL AND s.named_id = s.link_id AND (SELECT u.why IS NULL FROM why_uncounted(s.did) AS u) ORDER BY s.shared_at DESC LIMIT 1) AS g;

-- reader.readBy
SELECT $1::text UNION (
SELECT a.did FROM accounts AS a
WHERE a.handle = lower($1)
  AND (NOT a.handle_unverified OR NOT EXISTS (SELECT FROM accounts AS o
      WHERE o.handle = a.handle AND o.did <> a.did AND o.status = 'active'))
ORDER BY a.handle_unverified, a.status = 'active' DESC, a.handle_at DESC NULLS LAST, a.did
LIMIT 1);

-- reader.list
WITH found AS (
    SELECT l.link_id, 1 AS place
    FROM (SELECT l.counts_as AS link_id FROM links AS l WHERE l.identity ILIKE $5::text AND l.identity || '' ILIKE $4::text LIMIT $6) AS l
    UNION ALL (SELECT c.link_id, 2 FROM claims AS c WHERE c.words @@ $1::tsquery LIMIT $7)
    UNION ALL (SELECT c.link_id, 2 FROM cards AS c WHERE c.words @@ $1::tsquery LIMIT $7)
    UNION ALL SELECT s.link_id, 4 FROM ((SELECT s.link_id FROM shares AS s WHERE s.rkey >= $2 AND s.words @@ $1::tsquery LIMIT $3)
    UNION ALL (SELECT s.link_id FROM shares_default AS s WHERE s.rkey < $2 AND s.words @@ $1::tsquery LIMIT $3) LIMIT $3) AS s
)
SELECT f.place, count(*), array_agg(DISTINCT f.link_id ORDER BY f.link_id) FROM found AS f GROUP BY f.place;

-- reader.matchListed
WITH listed AS (SELECT DISTINCT k.id FROM unnest($3::bigint[]) AS k (id))
SELECT g.link_id
FROM (
    SELECT s.link_id, array_agg(s.collection) AS collections, array_agg(s.did) AS dids, array_agg(s.rkey) AS rkeys
    FROM ((SELECT s.link_id, s.collection, s.did, s.rkey FROM shares AS s WHERE s.rkey >= $2 AND s.words @@ $1::tsquery OFFSET 0)
    UNION ALL (SELECT s.link_id, s.collection, s.did, s.rkey FROM shares_default AS s WHERE s.rkey < $2 AND s.words @@ $1::tsquery OFFSET 0)) AS s
    JOIN listed AS k ON k.id = s.link_id
    GROUP BY s.link_id
) AS g
WHERE EXISTS (
    SELECT FROM (SELECT * FROM unnest(g.collections, g.dids, g.rkeys) AS s (collection, did, rkey)) AS s
    WHERE (SELECT u.why IS NULL FROM why_uncounted(s.did) AS u) AND CASE s.collection
    WHEN 'app.bsky.feed.post'
        THEN EXISTS (SELECT FROM posts AS p WHERE p.collection = 'app.bsky.feed.post' AND p.did = s.did AND p.rkey = s.rkey)
    ELSE EXISTS (SELECT FROM records_other AS p WHERE p.collection = s.collection AND p.did = s.did AND p.rkey = s.rkey) END
        AND NOT EXISTS (SELECT FROM profiles WHERE profiles.did = s.did AND profiles.withheld) )
UNION
SELECT g.link_id
FROM (
    SELECT k.id AS link_id, array_agg(c.id) AS claims
    FROM (SELECT c.id, c.link_id FROM claims AS c WHERE c.words @@ $1::tsquery OFFSET 0) AS c
    JOIN links AS l ON l.id = c.link_id JOIN listed AS k ON k.id = l.counts_as
    GROUP BY k.id
) AS g
WHERE EXISTS (
    SELECT FROM (SELECT s.did, s.claim_id FROM shares AS s WHERE s.link_id = g.link_id) AS s
    WHERE s.claim_id = ANY (g.claims) AND (SELECT u.why IS NULL FROM why_uncounted(s.did) AS u) )
UNION
SELECT k.id
FROM (SELECT c.* FROM cards AS c WHERE c.words @@ $1::tsquery OFFSET 0) AS c
JOIN links AS m ON m.id = c.link_id JOIN listed AS k ON k.id = m.counts_as
WHERE c.title <> '' AND c.status = '' AND NOT  coalesce((SELECT true FROM walls AS w WHERE w.title_group = c.title_group), false) 
      AND (c.same_site OR m.merged_into IS NOT NULL
          AND EXISTS (SELECT FROM link_merges AS g WHERE g.link_id = m.id AND g.split_at IS NULL AND g.why <> 'by hand'));

-- reader.keep
SELECT k.id FROM unnest($4::bigint[], $6::int[]) AS k (id, places)
WHERE ($5 = '' OR (SELECT l.site FROM links AS l WHERE l.id = k.id) = $5) AND (k.places & 1 > 0 AND EXISTS (SELECT FROM links AS l WHERE l.id = ANY (ARRAY(SELECT k.id UNION ALL SELECT m.id FROM links AS m WHERE m.merged_into = k.id)) AND l.identity || '' ILIKE $3::text)
    OR k.places & 2 > 0 AND EXISTS (
        SELECT FROM (SELECT array_agg(c.id) AS ids
            FROM (SELECT c.id, c.words FROM claims AS c WHERE c.link_id = ANY (ARRAY(SELECT k.id UNION ALL SELECT m.id FROM links AS m WHERE m.merged_into = k.id)) OFFSET 0) AS c
            WHERE c.words @@ $1::tsquery) AS c
        CROSS JOIN LATERAL (SELECT s.did, s.claim_id FROM shares AS s WHERE s.link_id = k.id AND c.ids IS NOT NULL OFFSET 0) AS s
        WHERE s.claim_id = ANY (c.ids) AND (SELECT u.why IS NULL FROM why_uncounted(s.did) AS u) )
    OR k.places & 2 > 0 AND EXISTS (
        SELECT FROM cards AS c JOIN links AS m ON m.id = c.link_id
        WHERE m.id = ANY (ARRAY(SELECT k.id UNION ALL SELECT m.id FROM links AS m WHERE m.merged_into = k.id)) AND c.words @@ $1::tsquery AND c.title <> '' AND c.status = '' AND NOT  coalesce((SELECT true FROM walls AS w WHERE w.title_group = c.title_group), false) 
      AND (c.same_site OR m.merged_into IS NOT NULL
          AND EXISTS (SELECT FROM link_merges AS g WHERE g.link_id = m.id AND g.split_at IS NULL AND g.why <> 'by hand')))
    OR k.places & 4 > 0 AND EXISTS (
        SELECT FROM ((SELECT s.collection, s.did, s.rkey, s.words FROM shares AS s WHERE s.rkey >= $2 AND s.link_id = k.id OFFSET 0)
    UNION ALL (SELECT s.collection, s.did, s.rkey, s.words FROM shares_default AS s WHERE s.rkey < $2 AND s.link_id = k.id OFFSET 0)) AS s
        WHERE s.words @@ $1::tsquery AND (SELECT u.why IS NULL FROM why_uncounted(s.did) AS u) AND CASE s.collection
    WHEN 'app.bsky.feed.post'
        THEN EXISTS (SELECT FROM posts AS p WHERE p.collection = 'app.bsky.feed.post' AND p.did = s.did AND p.rkey = s.rkey)
    ELSE EXISTS (SELECT FROM records_other AS p WHERE p.collection = s.collection AND p.did = s.did AND p.rkey = s.rkey) END
        AND NOT EXISTS (SELECT FROM profiles WHERE profiles.did = s.did AND profiles.withheld) ));

-- ReachReader.reachWithin
SELECT k.id, f.at, coalesce(f.read, 0)
FROM unnest($1::bigint[]) AS k (id)
CROSS JOIN LATERAL (
    SELECT (array_agg(d.at ORDER BY d.at))[$2::int] AS at, sum(d.n)::bigint AS read
    FROM (
        SELECT p.did, min(p.at) AS at, count(*) AS n
        FROM (
            SELECT s.did, s.shared_at AS at
            FROM judged_shares AS s
            WHERE s.link_id = k.id AND s.shared_at > $6 AND ($4::text[] IS NULL OR s.how = ANY ($4)) AND s.why IS NULL
                AND true 
              AND ($5::bigint[] IS NULL OR EXISTS (SELECT FROM watch_members AS w WHERE w.did = s.did AND w.watch_id = ANY ($5)))
            ORDER BY s.shared_at
            LIMIT $3
        ) AS p
        GROUP BY p.did
    ) AS d
) AS f;

-- ReachReader.scan
WITH part AS (
    SELECT s.link_id, s.at AS at FROM sharers AS s WHERE s.at <= $1 AND s.did LIKE 'did:nostr:%' ORDER BY s.at DESC LIMIT $2
)
SELECT (SELECT min(at) FROM part), (SELECT count(*) FROM part), ARRAY(
    SELECT DISTINCT p.link_id FROM part AS p
    WHERE $3::int IS NOT NULL AND ($4 = '' OR (SELECT l.site FROM links AS l WHERE l.id = p.link_id) = $4) AND ($3 < 2 OR EXISTS (SELECT FROM nostr_counts AS c WHERE c.link_id = p.link_id AND c.in_7d >= $3))
);

-- linkReader.shares
WITH page AS (
    SELECT s.did, s.collection, s.rkey, s.link_id, s.named_id, s.how, s.shared_at, s.subject_did, s.subject_collection, s.subject_rkey,
        s.why
    FROM judged_shares AS s
    WHERE s.link_id = $3 AND s.shared_at <= $4 AND (s.shared_at, s.did, s.collection, s.rkey, s.named_id) < ($4, $5, $6, $7, $8)
    ORDER BY s.shared_at DESC, s.did DESC, s.collection DESC, s.rkey DESC, s.named_id DESC
    LIMIT $9
), people AS MATERIALIZED (
    SELECT p.did, latest.shared_at, latest.collection, latest.rkey, latest.named_id
    FROM (SELECT DISTINCT s.did, s.link_id FROM page AS s) AS p
    LEFT JOIN LATERAL (
        SELECT s.shared_at, s.collection, s.rkey, s.named_id FROM (SELECT s.* FROM judged_shares AS s WHERE s.did = p.did AND s.link_id = p.link_id OFFSET 0) AS s WHERE s.why IS NULL
        ORDER BY s.shared_at DESC, s.collection DESC, s.rkey DESC, s.named_id DESC
        LIMIT 1
    ) AS latest ON true
)
SELECT s.did, coalesce(a.handle, ''), coalesce(a.handle_unverified AND a.handle <> '', false), coalesce(a.display_name, ''),
    s.collection, s.rkey, s.how, s.shared_at, coalesce(s.subject_did, ''), coalesce(s.subject_collection, ''),
        coalesce(s.subject_rkey, ''), coalesce((SELECT b.handle FROM accounts AS b WHERE b.did = s.subject_did AND b.status = 'active' AND NOT b.handle_unverified), ''),
       coalesce(coalesce(CASE WHEN $1::bigint[] IS NOT NULL AND s.why IS DISTINCT FROM 'hidden' AND NOT EXISTS (SELECT FROM watch_members AS w WHERE w.did = s.did AND w.watch_id = ANY ($1)) THEN 'not_followed' END, s.why, CASE WHEN s.shared_at <= $2 THEN 'outside_window' END), CASE WHEN (s.shared_at, s.collection, s.rkey, s.named_id) < (p.shared_at, p.collection, p.rkey, p.named_id)
           THEN 'same_person' ELSE '' END),
       s.named_id, CASE WHEN s.named_id <> s.link_id THEN (SELECT l.url FROM links AS l WHERE l.id = s.named_id) ELSE '' END, EXISTS (SELECT FROM profiles WHERE profiles.did = s.did AND profiles.withheld) , EXISTS (SELECT FROM profiles WHERE profiles.did = s.subject_did AND profiles.withheld) 
FROM page AS s
JOIN people AS p ON p.did = s.did
LEFT JOIN LATERAL (SELECT nullif(a.handle, 'handle.invalid') AS handle, a.handle_unverified, a.display_name FROM accounts AS a
    WHERE a.did = s.did LIMIT 1) AS a ON true
ORDER BY s.shared_at DESC, s.did DESC, s.collection DESC, s.rkey DESC, s.named_id DESC;

-- linkReader.waiting
SELECT s.did, coalesce(a.handle, ''), coalesce(a.handle_unverified AND a.handle <> '', false), coalesce(a.display_name, ''),
    s.collection, s.rkey,
       CASE WHEN s.collection IN ('app.bsky.feed.repost', 'nostr.6', 'nostr.16') THEN 'repost' ELSE 'quote' END, s.since, s.for_did,
           s.for_collection, s.for_rkey, coalesce((SELECT b.handle FROM accounts AS b WHERE b.did = s.for_did AND b.status = 'active' AND NOT b.handle_unverified), ''),
       coalesce(CASE WHEN $1::bigint[] IS NOT NULL AND s.why IS DISTINCT FROM 'hidden' AND NOT EXISTS (SELECT FROM watch_members AS w WHERE w.did = s.did AND w.watch_id = ANY ($1)) THEN 'not_followed' END, s.why, CASE WHEN EXISTS (SELECT FROM accounts AS b WHERE b.did = s.for_did AND b.status <> 'active')
           THEN 'subject_hidden' ELSE 'waiting' END),
        EXISTS (SELECT FROM profiles WHERE profiles.did = s.did AND profiles.withheld) , EXISTS (SELECT FROM profiles WHERE profiles.did = s.for_did AND profiles.withheld) 
FROM (
    SELECT DISTINCT coalesce(s.subject_did, s.did) AS did,
        CASE WHEN s.subject_did IS NULL THEN s.collection ELSE s.subject_collection END AS collection,
           coalesce(s.subject_rkey, s.rkey) AS rkey
    FROM shares AS s
    WHERE s.link_id = $2 AND EXISTS (SELECT FROM waiting)
) AS k
CROSS JOIN LATERAL (
    SELECT w.*, nullif(u.why, 'not_recommended') AS why FROM waiting AS w CROSS JOIN LATERAL why_uncounted(w.did) AS u
    WHERE w.for_did = k.did AND w.for_collection = k.collection AND w.for_rkey = k.rkey AND w.projection = 'links'
      AND (k.did, k.collection, k.rkey, w.did, w.collection, w.rkey) > ($3, $4, $5, $6, $7, $8)
      AND NOT EXISTS (SELECT FROM shares AS s WHERE s.did = w.did AND s.collection = w.collection AND s.rkey = w.rkey AND s.link_id = $2)
    ORDER BY w.did, w.collection, w.rkey
    LIMIT $9
) AS s
LEFT JOIN LATERAL (SELECT nullif(a.handle, 'handle.invalid') AS handle, a.handle_unverified, a.display_name FROM accounts AS a
    WHERE a.did = s.did LIMIT 1) AS a ON true
ORDER BY s.for_did, s.for_collection, s.for_rkey, s.did, s.collection, s.rkey
LIMIT $9;

-- linkReader.count
WITH marked AS (
    SELECT s.did, s.how, s.shared_at, s.collection, s.rkey, s.named_id, coalesce(coalesce(CASE WHEN $1::bigint[] IS NOT NULL AND s.why IS DISTINCT FROM 'hidden' AND NOT EXISTS (SELECT FROM watch_members AS w WHERE w.did = s.did AND w.watch_id = ANY ($1)) THEN 'not_followed' END, s.why, CASE WHEN s.shared_at <= $2 THEN 'outside_window' END), '') AS why
    FROM judged_shares AS s
    WHERE s.link_id = $3
), ordered AS (
    SELECT s.did, s.how, s.shared_at, s.why,
           s.why IN ('', 'outside_window')
           AND row_number() OVER (PARTITION BY s.did
               ORDER BY s.why IN ('', 'outside_window') DESC, s.shared_at DESC, s.collection DESC, s.rkey DESC,
                   s.named_id DESC) = 1 AS latest
    FROM marked AS s
), s AS (
    SELECT o.did, o.how, o.shared_at, o.latest, CASE WHEN o.why = '' AND NOT o.latest THEN 'same_person' ELSE o.why END AS why
    FROM ordered AS o
), f AS (
    SELECT min(s.shared_at) AS at, min(min(s.shared_at)) OVER () AS began FROM s WHERE s.why IN ('', 'same_person') GROUP BY s.did
)
SELECT count(*), count(DISTINCT s.did), min(s.shared_at), max(s.shared_at), count(*) FILTER (WHERE s.why = ''), count(*) FILTER (WHERE s.why = 'hidden'), count(*) FILTER (WHERE s.why = 'not_followed'), count(*) FILTER (WHERE s.why = 'not_recommended'), count(*) FILTER (WHERE s.why = 'subject_hidden'), count(*) FILTER (WHERE s.why = 'subject_gone'), count(*) FILTER (WHERE s.why = 'copy'), count(*) FILTER (WHERE s.why = 'outside_window'), count(*) FILTER (WHERE s.why = 'same_person'), count(*) FILTER (WHERE s.how = 'post'), count(*) FILTER (WHERE s.how = 'quote'), count(*) FILTER (WHERE s.how = 'repost'), count(*) FILTER (WHERE s.latest AND s.shared_at > $4::timestamptz - interval '1 hours'), count(*) FILTER (WHERE s.latest AND s.shared_at > $4::timestamptz - interval '3 hours'), count(*) FILTER (WHERE s.latest AND s.shared_at > $4::timestamptz - interval '6 hours'), count(*) FILTER (WHERE s.latest AND s.shared_at > $4::timestamptz - interval '12 hours'), count(*) FILTER (WHERE s.latest AND s.shared_at > $4::timestamptz - interval '24 hours'), count(*) FILTER (WHERE s.latest AND s.shared_at > $4::timestamptz - interval '168 hours'), (SELECT min(f.at) FROM f), 
ARRAY(SELECT greatest(1,
    least($5::int,
        1 + floor($5::int * extract(epoch FROM f.at - f.began) / nullif(extract(epoch FROM $4::timestamptz - f.began), 0))))::int FROM f) FROM s;

-- linkReader.readGiven
SELECT c.title AS text, count(DISTINCT s.did) AS accounts
FROM judged_shares AS s
JOIN claims AS c ON c.id = s.claim_id
WHERE s.link_id = $1 AND s.subject_did IS NULL AND c.title NOT IN ('', $2) AND s.why IS NULL
GROUP BY c.title
ORDER BY count(DISTINCT s.did) DESC, c.title
LIMIT $3;

-- fetchedPage
SELECT c.title, c.description, c.site_name, c.address, c.fetched_at, coalesce(c.title <> '' AND c.status = '' AND NOT  coalesce((SELECT true FROM walls AS w WHERE w.title_group = c.title_group), false) 
      AND (c.same_site OR m.merged_into IS NOT NULL
          AND EXISTS (SELECT FROM link_merges AS g WHERE g.link_id = m.id AND g.split_at IS NULL AND g.why <> 'by hand')), false) AS counts,
       CASE WHEN c.title <> '' AND c.status = '' AND NOT  coalesce((SELECT true FROM walls AS w WHERE w.title_group = c.title_group), false) 
      AND (c.same_site OR m.merged_into IS NOT NULL
          AND EXISTS (SELECT FROM link_merges AS g WHERE g.link_id = m.id AND g.split_at IS NULL AND g.why <> 'by hand')) THEN '' WHEN c.status <> '' THEN c.status
            WHEN coalesce((SELECT true FROM walls AS w WHERE w.title_group = c.title_group), false) THEN 'other pages of the site have this title' ELSE 'it is a page of another site' END AS why
FROM links AS m
JOIN cards AS c ON c.link_id = m.id
WHERE (m.id = $1 OR m.merged_into = $1) AND c.fetched_at IS NOT NULL
ORDER BY counts DESC, m.id = $1 DESC, c.fetched_at, c.link_id
LIMIT 1;

-- storing.distrustTitle
SELECT count(DISTINCT k.page), EXISTS (SELECT FROM walls AS w WHERE w.title_group = $1)
FROM (SELECT l.counts_as, min(CASE WHEN substring(split_part(l.identity, '?', 1) FROM '[^/]*$') ~ '[0-9]{5}|[^-]-[^-]+-[^-]+-[^-]' THEN substring(split_part(l.identity, '?', 1) FROM '[^/]*$') ELSE split_part(l.identity, '?', 1) END) AS page FROM cards AS c JOIN links AS l ON l.id = c.link_id
    WHERE c.title_group = $1 GROUP BY l.counts_as LIMIT 100) AS k;

-- nextCard
SELECT c.link_id, l.url, c.tries + 1,
       l.merged_into IS NOT NULL OR c.sharers < $1 AND c.tries = 0
         AND NOT EXISTS (
    SELECT k.link_id,
        o.link_id AS other
    FROM (SELECT c.link_id) AS k JOIN claim_votes AS v ON v.link_id = k.link_id AND v.titles > 0 AND NOT coalesce((SELECT true FROM walls AS w WHERE w.title_group = v.title_group), false) 
    CROSS JOIN LATERAL (SELECT o.link_id FROM claim_votes AS o
            WHERE o.title_group = v.title_group AND o.link_id <> v.link_id AND o.titles > 0 LIMIT 3) AS o
    UNION
    SELECT k.link_id,
        m.counts_as
    FROM (SELECT c.link_id) AS k JOIN claim_votes AS v ON v.link_id = k.link_id AND v.titles > 0 AND NOT coalesce((SELECT true FROM walls AS w WHERE w.title_group = v.title_group), false) 
    CROSS JOIN LATERAL (SELECT c.link_id FROM cards AS c
            WHERE c.title_group = v.title_group AND c.link_id <> v.link_id AND c.status = '' LIMIT 3) AS c
    JOIN links AS m ON m.id = c.link_id AND m.counts_as <> k.link_id
    UNION
    SELECT k.link_id, o.counts_as
    FROM (SELECT c.link_id) AS k JOIN links AS l ON l.id = k.link_id AND substring(split_part(l.identity, '?', 1) FROM '[^/]*$') ~ '[0-9]{5}|[^-]-[^-]+-[^-]+-[^-]'
    CROSS JOIN LATERAL (SELECT o.counts_as FROM links AS o
        WHERE substring(split_part(o.identity, '?', 1) FROM '[^/]*$') = substring(split_part(l.identity, '?', 1) FROM '[^/]*$') AND substring(split_part(o.identity, '?', 1) FROM '[^/]*$') ~ '[0-9]{5}|[^-]-[^-]+-[^-]+-[^-]' AND o.site = l.site
            AND o.counts_as <> l.id LIMIT 3) AS o)
         AND EXISTS (SELECT FROM claim_votes AS v WHERE v.link_id = c.link_id AND v.titles > 0 AND NOT coalesce((SELECT true FROM walls AS w WHERE w.title_group = v.title_group), false) )
FROM cards AS c
JOIN links AS l ON l.id = c.link_id
WHERE c.fetch_at IS NOT NULL AND (c.tries = 0 OR c.fetch_at NOT BETWEEN now() AND now() + interval '1 day') AND NOT EXISTS (SELECT FROM card_hosts AS h WHERE h.host = split_part(split_part(l.url, '/', 3), ':', 1) AND h.next_at > clock_timestamp())
ORDER BY c.sharers DESC, c.fetch_at DESC
LIMIT 1
FOR UPDATE OF c SKIP LOCKED;

-- CountLeaving
WITH leaving AS (
    SELECT DISTINCT p.link_id FROM "shares_default" AS p WHERE p.link_id > $1 ORDER BY p.link_id LIMIT $2
), counted AS (
    SELECT l.link_id, (SELECT count(*) FROM (SELECT DISTINCT s.did FROM judged_shares AS s WHERE s.link_id = l.link_id AND s.why IS NULL) AS s) AS sharers
    FROM leaving AS l
    WHERE (SELECT count(*) FROM (SELECT FROM shares AS s WHERE s.link_id = l.link_id LIMIT $3) AS s) >= $3
), kept AS (
    INSERT INTO leaving_links (part, link_id, sharers, counted)
    SELECT to_regclass($4), c.link_id, c.sharers, $5 FROM counted AS c WHERE c.sharers >= $3
    ON CONFLICT (part, link_id) DO UPDATE SET sharers = excluded.sharers, counted = excluded.counted
), others AS (
    DELETE FROM leaving_links AS k
    WHERE k.part = to_regclass($4) AND k.link_id > $1
        AND (k.link_id <= (SELECT max(link_id) FROM leaving) OR (SELECT count(*) FROM leaving) < $2)
      AND k.link_id NOT IN (SELECT c.link_id FROM counted AS c WHERE c.sharers >= $3)
)
SELECT coalesce(max(link_id), $1), count(*) FROM leaving;

-- ExpireOtherShares
SELECT to_regclass($1) IS NOT NULL;

-- ExpireIdle
WITH old AS (
    SELECT i.did, i.collection, i.rkey, (
EXISTS (SELECT FROM shares AS s WHERE s.subject_did = i.did AND s.subject_rkey = i.rkey)
OR EXISTS (SELECT FROM waiting AS w WHERE w.for_did = i.did AND w.for_collection = i.collection AND w.for_rkey = i.rkey)) AS needed
    FROM subjects AS i WHERE i.checked_at <= $1 ORDER BY i.checked_at LIMIT $3
    FOR UPDATE SKIP LOCKED
), kept AS (
    UPDATE subjects AS i SET checked_at = $2
    FROM old AS o WHERE i.did = o.did AND i.collection = o.collection AND i.rkey = o.rkey AND o.needed
), gone AS (
    DELETE FROM subjects AS i
    USING old AS o WHERE i.did = o.did AND i.collection = o.collection AND i.rkey = o.rkey AND NOT o.needed
)
SELECT count(*) FROM old;

-- SharesOfRecord
SELECT s.collection AS collection, s.did AS did, s.rkey AS rkey, coalesce(a.handle, '') AS handle, l.url AS url,
       CASE WHEN s.named_id <> s.link_id THEN (SELECT n.url FROM links AS n WHERE n.id = s.named_id) ELSE '' END AS named, s.how AS how,
       coalesce('at://' || s.subject_did || '/' || s.subject_collection || '/' || s.subject_rkey, '') AS subject, s.shared_at AS shared_at,
       coalesce(a.status, 'active') AS status, coalesce(s.why, '') AS why
FROM judged_shares AS s
JOIN links AS l ON l.id = s.link_id
LEFT JOIN accounts AS a ON a.did = s.did WHERE s.collection = $1 AND s.did = $2 AND s.rkey = $3 ORDER BY l.url;
