-- What audits found: comparisons of what is stored with the accounts' own repositories.

CREATE TABLE audits (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    started_at timestamptz NOT NULL,
    ended_at   timestamptz NOT NULL,
    from_at    timestamptz NOT NULL,
    to_at      timestamptz NOT NULL,
    accounts   int         NOT NULL,
    failures   int         NOT NULL,
    records    int         NOT NULL,
    missing    int         NOT NULL,
    extra      int         NOT NULL,
    stale      int         NOT NULL,
    score      double precision,
    repaired   boolean     NOT NULL
);
CREATE INDEX audits_ended ON audits (ended_at);

COMMENT ON TABLE  audits IS 'Comparisons of what is stored with the accounts'' own repositories.';
COMMENT ON COLUMN audits.from_at IS 'The posts compared have rkeys from this moment on, or from when their account was followed, and up to to_at.';
COMMENT ON COLUMN audits.accounts IS 'How many accounts were to be compared.';
COMMENT ON COLUMN audits.failures IS 'How many of them could not be: their posts count as nothing.';
COMMENT ON COLUMN audits.records IS 'How many posts were compared: those in the repositories, and those stored that are not in them.';
COMMENT ON COLUMN audits.score IS 'The part of the posts that agree, from 0 to 1; null where nobody could be compared.';
COMMENT ON COLUMN audits.repaired IS 'Whether what was found was repaired, or asked to be.';

CREATE TABLE audit_faults (
    audit_id bigint           NOT NULL REFERENCES audits ON DELETE CASCADE,
    did      text COLLATE "C" NOT NULL,
    rkey     text COLLATE "C" NOT NULL,
    fault    text             NOT NULL CHECK (fault IN ('missing', 'extra', 'stale', 'unread')),
    detail   text             NOT NULL DEFAULT '',
    PRIMARY KEY (audit_id, did, rkey)
);
CREATE INDEX audit_faults_record ON audit_faults (did, rkey);

COMMENT ON TABLE  audit_faults IS 'What an audit found, the first thousand of each. unread: the account could not be compared.';
COMMENT ON COLUMN audit_faults.rkey IS 'Empty where the whole account is meant.';
