-- Operation: audits and alerts.

COMMENT ON TABLE weir_migration IS 'The migrations of Weir that this database has. `weir migrate` makes this table before the first of them. Not compared: of the program and its configuration.';
COMMENT ON COLUMN weir_migration.sha256 IS 'Of its file. A file of a release never changes: a binary that has another one under this name does not start.';

CREATE TABLE audits (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    started_at timestamptz NOT NULL,
    ended_at   timestamptz NOT NULL,
    from_at    timestamptz,
    to_at      timestamptz,
    accounts   int         NOT NULL,
    failures   int         NOT NULL,
    pending    int         NOT NULL DEFAULT 0,
    records    int         NOT NULL,
    missing    int         NOT NULL,
    extra      int         NOT NULL,
    stale      int         NOT NULL,
    score      double precision,
    repaired   boolean     NOT NULL
);
CREATE INDEX audits_ended ON audits (ended_at);

COMMENT ON TABLE  audits IS 'Comparisons of the stored records with the accounts'' own repositories. Not compared: how it went, not what is stored.';
COMMENT ON COLUMN audits.from_at IS 'Records whose rkey is a TID are compared from this moment to to_at; of each account, from when its records are known to be stored. Of other collections than posts, other rkeys too, whatever their age. NULL: nothing was compared.';
COMMENT ON COLUMN audits.to_at IS 'See from_at.';
COMMENT ON COLUMN audits.accounts IS 'How many accounts were to be compared.';
COMMENT ON COLUMN audits.failures IS 'How many of these accounts could not be compared. Their records are not counted.';
COMMENT ON COLUMN audits.pending IS 'How many followed accounts were left out, because their past has not been read to the end yet.';
COMMENT ON COLUMN audits.records IS 'How many records were compared: those in the repositories, and those stored that are not in them.';
COMMENT ON COLUMN audits.missing IS 'Records in a repository that are not stored.';
COMMENT ON COLUMN audits.extra IS 'Stored records that are not in the repository.';
COMMENT ON COLUMN audits.stale IS 'Records that are stored in another version than the repository''s.';
COMMENT ON COLUMN audits.score IS 'The fraction of the records that agree, from 0 to 1. NULL: no record was compared.';
COMMENT ON COLUMN audits.repaired IS 'Whether the faults were repaired, or a repair was requested.';

CREATE TABLE audit_faults (
    audit_id   bigint           NOT NULL REFERENCES audits ON DELETE CASCADE,
    did        text COLLATE "C" NOT NULL,
    collection text COLLATE "C" NOT NULL,
    rkey       text COLLATE "C" NOT NULL,
    fault      text             NOT NULL CHECK (fault IN ('missing', 'extra', 'stale', 'unread')),
    detail     text             NOT NULL DEFAULT '',
    PRIMARY KEY (audit_id, did, collection, rkey)
);
CREATE INDEX audit_faults_record ON audit_faults (did, collection, rkey);

COMMENT ON TABLE  audit_faults IS 'The first thousand faults that an audit found, of each kind. Not compared: how it went, not what is stored.';
COMMENT ON COLUMN audit_faults.collection IS 'Empty, like rkey: the fault is of the whole account.';
COMMENT ON COLUMN audit_faults.fault IS 'missing, extra, stale: as counted in audits; unread: the account could not be compared.';

CREATE TABLE alerts (
    name          text        NOT NULL,
    component     text        NOT NULL,
    severity      text        NOT NULL,
    message       text        NOT NULL,
    hint          text        NOT NULL,
    since         timestamptz NOT NULL,
    seen_at       timestamptz NOT NULL,
    fired_at      timestamptz,
    resolved_at   timestamptz,
    last_notified text        NOT NULL DEFAULT '' CHECK (last_notified IN ('', 'fired', 'resolved')),
    PRIMARY KEY (name, component)
);

COMMENT ON TABLE  alerts IS 'One row per condition of /health that has ever held, with its latest times. Not compared: how it went, not what is stored.';
COMMENT ON COLUMN alerts.component IS 'The stream or queue that the alert is about. Empty: all of Weir.';
COMMENT ON COLUMN alerts.message IS 'What is wrong.';
COMMENT ON COLUMN alerts.hint IS 'What to look at first.';
COMMENT ON COLUMN alerts.since IS 'When the condition began to hold.';
COMMENT ON COLUMN alerts.seen_at IS 'When the condition was last seen to hold.';
COMMENT ON COLUMN alerts.fired_at IS 'When the condition had held for long enough to notify somebody. NULL: not yet.';
COMMENT ON COLUMN alerts.resolved_at IS 'When the condition had been gone for long enough. NULL: not yet.';
COMMENT ON COLUMN alerts.last_notified IS 'What the latest send_alert job is about. Empty: there was none, or there is no webhook.';
