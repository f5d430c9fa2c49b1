-- What is not well, since when, and whether somebody was told.

CREATE TABLE alerts (
    name        text        NOT NULL,
    about       text        NOT NULL,
    severity    text        NOT NULL,
    says        text        NOT NULL,
    look        text        NOT NULL,
    since       timestamptz NOT NULL,
    seen_at     timestamptz NOT NULL,
    fired_at    timestamptz,
    resolved_at timestamptz,
    told        text        NOT NULL DEFAULT '' CHECK (told IN ('', 'fired', 'resolved')),
    PRIMARY KEY (name, about)
);

COMMENT ON TABLE alerts IS 'A row per condition of /health that has ever held, with its latest time.';
COMMENT ON COLUMN alerts.about IS 'The stream or queue; empty: the whole.';
COMMENT ON COLUMN alerts.look IS 'What to look at first.';
COMMENT ON COLUMN alerts.since IS 'When it began to hold.';
COMMENT ON COLUMN alerts.seen_at IS 'When it was last seen to hold.';
COMMENT ON COLUMN alerts.fired_at IS 'When it had held for long enough to tell somebody; null: not yet.';
COMMENT ON COLUMN alerts.resolved_at IS 'When it had been gone for long enough; null: it has not.';
COMMENT ON COLUMN alerts.told IS 'What the latest send_alert job is about; empty: there was none, or no webhook.';
