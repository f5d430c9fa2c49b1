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

COMMENT ON TABLE  relay_audits IS 'What a relay of Nostr had of a day, by the authors'' dates in UTC, compared with what was stored. Rows stay for a month.';
COMMENT ON COLUMN relay_audits.method IS 'negentropy: sets of ids were compared (NIP-77). pages: all events were read.';
COMMENT ON COLUMN relay_audits.events IS 'Events of that day that were stored before.';
COMMENT ON COLUMN relay_audits.missing IS 'Events that the relay named, and that had never been stored. The sum of all tries.';
COMMENT ON COLUMN relay_audits.stored IS 'Records that changed because of them. Forged, deleted and replaced events change none. The sum of all tries.';
COMMENT ON COLUMN relay_audits.problem IS 'Why the day was not compared completely. Empty: it was.';
COMMENT ON COLUMN relay_audits.retry_at IS 'When it is tried again. NULL: never.';
