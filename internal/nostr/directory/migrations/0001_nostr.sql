-- part nostr
-- Nostr: what relays have said of accounts, which relays accounts name, and comparisons of relays with what is stored.

-- Accounts of Nostr that are watched: what relays have said of them.

CREATE TABLE nostr_authors (
    did          text COLLATE "C" PRIMARY KEY,
    follows_rev  text COLLATE "C" NOT NULL DEFAULT '',
    profile_rev  text COLLATE "C" NOT NULL DEFAULT '',
    name         text        NOT NULL DEFAULT '',
    name_at      timestamptz,
    relays_rev   text COLLATE "C" NOT NULL DEFAULT '',
    relays       text[]      NOT NULL DEFAULT '{}',
    read_at      timestamptz
);
CREATE INDEX nostr_authors_read_at ON nostr_authors (read_at NULLS FIRST);

COMMENT ON TABLE nostr_authors IS 'Accounts of Nostr that are watched, or whose follows are. Relays bring the same lists in any order and age: only a newer revision changes anything. Not compared: what servers said, who are asked again.';
COMMENT ON COLUMN nostr_authors.follows_rev IS 'The revision of the follow list (kind 3) that was read last. An older one never changes the members of a watch.';
COMMENT ON COLUMN nostr_authors.profile_rev IS 'The revision of the profile (kind 0) whose name and picture accounts has.';
COMMENT ON COLUMN nostr_authors.name IS 'The name by NIP-05 that the profile claims: name@domain. It is the handle in accounts once the domain has confirmed it.';
COMMENT ON COLUMN nostr_authors.name_at IS 'When the domain was last asked. NULL: never.';
COMMENT ON COLUMN nostr_authors.relays IS 'The relays that the account writes to (kind 10002, NIP-65) or, before it was read, those that the watch names.';
COMMENT ON COLUMN nostr_authors.read_at IS 'When profile and relays were last asked for. NULL: never.';

CREATE TABLE nostr_relays (
    url      text COLLATE "C" PRIMARY KEY,
    read_to  timestamptz,
    next_at  timestamptz NOT NULL,
    failures int         NOT NULL DEFAULT 0,
    problem  text        NOT NULL DEFAULT '',
    -- A relay that lost its place keeps its failures: without them it would take the place back at once.
    chosen   boolean     NOT NULL DEFAULT true
);

COMMENT ON TABLE nostr_relays IS 'Relays that followed accounts name, and WEIR_NOSTR does not: they are asked now and then. Not compared: what servers said, who are asked again.';
COMMENT ON COLUMN nostr_relays.read_to IS 'What the accounts that name the relay wrote until then was read, by the database''s clock. NULL: it was never read.';
COMMENT ON COLUMN nostr_relays.next_at IS 'When the relay is asked next. A relay that fails is asked less often.';
COMMENT ON COLUMN nostr_relays.failures IS 'How often in a row it could not be read.';
COMMENT ON COLUMN nostr_relays.problem IS 'Why it could not be read the last time. Empty: it could.';
COMMENT ON COLUMN nostr_relays.chosen IS 'Whether the relay is among those that are asked. Others keep what is known of them as long as a followed account names them.';

-- Comparisons of relays of Nostr with what is stored.

CREATE TABLE relay_audits (
    stream   text COLLATE "C" NOT NULL,
    day      date             NOT NULL,
    method   text             NOT NULL,
    events   int              NOT NULL,
    missing  int              NOT NULL,
    stored   int              NOT NULL,
    problem  text             NOT NULL DEFAULT '',
    tries    int              NOT NULL DEFAULT 1,
    retry_at timestamptz,
    ended_at timestamptz      NOT NULL DEFAULT now(),
    PRIMARY KEY (stream, day)
);

COMMENT ON TABLE  relay_audits IS 'What a relay of Nostr had of a day, by the authors'' dates in UTC, compared with what was stored. Rows stay for a month. Not compared: how it went, not what is stored.';
COMMENT ON COLUMN relay_audits.method IS 'negentropy: sets of ids were compared (NIP-77). pages: all events were read.';
COMMENT ON COLUMN relay_audits.events IS 'Events of that day that were stored before.';
COMMENT ON COLUMN relay_audits.missing IS 'Events that the relay named, and that had never been stored. The sum of all tries.';
COMMENT ON COLUMN relay_audits.stored IS 'Records that changed because of them. Forged, deleted and replaced events change none. The sum of all tries.';
COMMENT ON COLUMN relay_audits.problem IS 'Why the day was not compared completely. Empty: it was.';
COMMENT ON COLUMN relay_audits.retry_at IS 'When it is tried again. NULL: never.';
