-- trending() counts the sharers of one network, as the API does.

CREATE FUNCTION known_network(p_network text) RETURNS text LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF p_network NOT IN ('bluesky', 'nostr') THEN
        RAISE EXCEPTION 'the network is %: expected bluesky, nostr, or NULL for both', quote_literal(p_network) USING ERRCODE = '22023';
    END IF;
    RETURN p_network;
END $$;

COMMENT ON FUNCTION known_network IS 'Returns a network, and refuses one that does not exist. NULL means both.';

DROP FUNCTION trending(interval, text);

CREATE FUNCTION trending(span interval DEFAULT '6 hours', watch text DEFAULT NULL, network text DEFAULT NULL)
RETURNS TABLE (link_id bigint, url text, site text, title text, sharers bigint, shares bigint, first_shared timestamptz, last_shared timestamptz)
LANGUAGE sql STABLE ROWS 1000 AS $$
    WITH asked AS MATERIALIZED (
        SELECT known_network(trending.network) AS network
    ), counted AS (
        SELECT s.link_id, s.did, count(*) AS shares, min(s.shared_at) AS first_shared, max(s.shared_at) AS last_shared
        FROM asked AS k
        JOIN living_shares AS s ON k.network IS NULL OR k.network = CASE WHEN s.did LIKE 'did:nostr:%' THEN 'nostr' ELSE 'bluesky' END
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

COMMENT ON FUNCTION trending IS 'The links shared within a span of time such as ''24h'', the most sharers first; for everyone, or for the accounts that the watches of a target include, and of one network or both. Counted from the shares, as exactly as the API: with millions of them that takes seconds. Titles and spellings are as last counted, a second or two ago.';
