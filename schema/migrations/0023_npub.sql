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

COMMENT ON TABLE nostr_authors IS 'Accounts of Nostr that are watched, or whose follows are. Relays bring the same lists in any order and age: only a newer revision changes anything.';
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
    problem  text        NOT NULL DEFAULT ''
);

COMMENT ON TABLE nostr_relays IS 'Relays that followed accounts name, and WEIR_NOSTR does not: they are asked now and then.';
COMMENT ON COLUMN nostr_relays.read_to IS 'What the accounts that name the relay wrote until then was read, by the database''s clock. NULL: it was never read.';
COMMENT ON COLUMN nostr_relays.next_at IS 'When the relay is asked next. A relay that fails is asked less often.';
COMMENT ON COLUMN nostr_relays.failures IS 'How often in a row it could not be read.';
COMMENT ON COLUMN nostr_relays.problem IS 'Why it could not be read the last time. Empty: it could.';

-- A secret key must not get into a table, a listing or a backup.

CREATE FUNCTION refuse_secret_target() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'this is a secret key (nsec), which Weir never needs: name the public key (npub), and consider this one stolen if others may have seen it' USING ERRCODE = '22023';
END $$;

COMMENT ON FUNCTION refuse_secret_target IS 'Refuses a watch whose target contains a secret key of Nostr.';

CREATE TRIGGER watch_target_public BEFORE INSERT OR UPDATE OF target ON watches FOR EACH ROW
    WHEN (NEW.target ~* 'nsec1[0-9a-z]{20}') EXECUTE FUNCTION refuse_secret_target();

COMMENT ON COLUMN watches.target IS 'A handle, a DID, the at:// or bsky.app address of a list or starter pack, or the npub of an account of Nostr.';
