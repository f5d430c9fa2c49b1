-- part lexicons
-- Lexicons: the schemas of records, what each record was judged to be, what it refers to, and what waits for other records.

CREATE TABLE lexicons (
    nsid      text COLLATE "C" PRIMARY KEY,
    document  jsonb            NOT NULL,
    hash      text             NOT NULL,
    source    text             NOT NULL CHECK (source IN ('folder', 'resolved')),
    authority text COLLATE "C",
    loaded_at timestamptz      NOT NULL DEFAULT clock_timestamp()
);

COMMENT ON TABLE  lexicons IS 'The schemas that records are compared with. Every process uses exactly these, and notices a change with the next records that it judges. Not compared: what servers said, who are asked again.';
COMMENT ON COLUMN lexicons.document IS 'The schema file.';
COMMENT ON COLUMN lexicons.hash IS 'SHA-256 of the document. The verdicts name another hash, which covers the definitions in other documents too.';
COMMENT ON COLUMN lexicons.source IS 'folder: from WEIR_LEXICONS; resolved: published by the authority of the name. A file in the folder wins.';
COMMENT ON COLUMN lexicons.authority IS 'The account that published a resolved schema.';
COMMENT ON COLUMN lexicons.loaded_at IS 'When this document was stored.';

CREATE TABLE strict_lexicons (
    pattern text COLLATE "C" PRIMARY KEY
);

COMMENT ON TABLE strict_lexicons IS 'The collections whose records are compared strictly with their schemas: names, and prefixes that end in a dot and an asterisk. From WEIR_STRICT_LEXICONS of the worker that was started last. Not compared: of the program and its configuration.';

CREATE TABLE verdicts (
    collection  text COLLATE "C" NOT NULL,
    did         text COLLATE "C" NOT NULL,
    rkey        text COLLATE "C" NOT NULL,
    cid         text             NOT NULL,
    schema_hash text             NOT NULL,
    verdict     text             NOT NULL CHECK (verdict IN ('valid', 'invalid', 'unknown')),
    state       text             NOT NULL CHECK (state IN ('projected', 'parked', 'missing', 'refused')),
    dangling    boolean          NOT NULL DEFAULT false,
    problems    jsonb            NOT NULL DEFAULT '[]',
    warnings    jsonb            NOT NULL DEFAULT '[]',
    judged_at   timestamptz      NOT NULL DEFAULT now(),
    PRIMARY KEY (did, collection, rkey)
) WITH (autovacuum_vacuum_scale_factor = 0.05);
CREATE INDEX verdicts_schema ON verdicts (collection, schema_hash, did, rkey);

COMMENT ON TABLE  verdicts IS 'What each stored record of a judged collection was found to be, in its newest version. A record that is stored and has no row has not been judged yet. Not compared: made from records, which are compared.';
COMMENT ON COLUMN verdicts.cid IS 'The version of the record that was judged.';
COMMENT ON COLUMN verdicts.schema_hash IS 'The schema that it was compared with, and every definition that the schema uses. Empty: there was none.';
COMMENT ON COLUMN verdicts.verdict IS 'valid, invalid, or unknown: there is no schema, or a part of it is missing; what could be checked is right.';
COMMENT ON COLUMN verdicts.state IS 'projected: its references and texts are stored; parked: it waits for a record that it requires; missing: it waited in vain, which is a dead letter; refused: it is invalid or breaks a hard rule, which is a dead letter. Only a projected record has rows in record_refs and record_texts.';
COMMENT ON COLUMN verdicts.dangling IS 'A record that it requires was deleted.';
COMMENT ON COLUMN verdicts.problems IS 'Why it is invalid or refused: an array of objects with rule, path, expected and received. path is a JSON pointer.';
COMMENT ON COLUMN verdicts.warnings IS 'The soft rules that it breaks, as in problems.';
COMMENT ON COLUMN verdicts.judged_at IS 'When this was found. Judging it again with the same result changes nothing.';

CREATE TABLE record_refs (
    collection    text COLLATE "C" NOT NULL,
    did           text COLLATE "C" NOT NULL,
    rkey          text COLLATE "C" NOT NULL,
    path          text             NOT NULL,
    kind          text             NOT NULL CHECK (kind IN ('at-uri', 'strong-ref', 'did', 'blob', 'cid-link')),
    target        text             NOT NULL,
    to_collection text COLLATE "C",
    to_did        text COLLATE "C",
    to_rkey       text COLLATE "C",
    cid           text,
    declared      boolean          NOT NULL,
    read          boolean          NOT NULL DEFAULT false,
    dangling      boolean          NOT NULL DEFAULT false
) WITH (autovacuum_vacuum_scale_factor = 0.05);
CREATE INDEX record_refs_record ON record_refs (did, collection, rkey);
CREATE INDEX record_refs_target ON record_refs (to_did, to_collection, to_rkey, did, collection, rkey) WHERE to_rkey IS NOT NULL;

COMMENT ON TABLE  record_refs IS 'Every reference in the projected records. References to deleted records stay. Not compared: made from records, which are compared.';
COMMENT ON COLUMN record_refs.path IS 'Where it is in the record: a JSON pointer.';
COMMENT ON COLUMN record_refs.kind IS 'at-uri; strong-ref: an at-uri with the CID of the version that is meant; did; blob; cid-link.';
COMMENT ON COLUMN record_refs.target IS 'The at-uri, the DID or the CID, as it is in the record.';
COMMENT ON COLUMN record_refs.to_collection IS 'The record that it names, with to_did and to_rkey. NULL: it names none, or has a handle in place of a DID.';
COMMENT ON COLUMN record_refs.cid IS 'Of a strong reference, the version that is meant.';
COMMENT ON COLUMN record_refs.declared IS 'Whether the schema says that this is a reference. False: it is in a field without a schema.';
COMMENT ON COLUMN record_refs.read IS 'A rule reads the target, so that this record is judged again when the target changes.';
COMMENT ON COLUMN record_refs.dangling IS 'The target was deleted, or its account was, and it is of a judged collection. False says nothing about targets of other collections.';

CREATE TABLE record_texts (
    collection text COLLATE "C" NOT NULL,
    did        text COLLATE "C" NOT NULL,
    rkey       text COLLATE "C" NOT NULL,
    text       text             NOT NULL,
    words      tsvector         NOT NULL,
    PRIMARY KEY (did, collection, rkey)
) WITH (autovacuum_vacuum_scale_factor = 0.05);
CREATE INDEX record_texts_words ON record_texts USING gin (words) WITH (gin_pending_list_limit = 1024);

COMMENT ON TABLE  record_texts IS 'What people wrote in the projected records and look for: the fields that the rules of the namespace name, or else all strings that the schema declares without a format and without a list of values. A record without any has no row. Not compared: made from records, which are compared.';
COMMENT ON COLUMN record_texts.text IS 'The texts, a line each: what the record is called, and then the rest, both in the order of the record. The first 64 KiB.';
COMMENT ON COLUMN record_texts.words IS 'The words of the text; those that say what the record is called have the weight A. A language or a media type that the record declares is a word that begins with =. Workers make them: Postgres'' parser depends on the locale.';

CREATE TABLE parked (
    collection    text COLLATE "C" NOT NULL,
    did           text COLLATE "C" NOT NULL,
    rkey          text COLLATE "C" NOT NULL,
    to_collection text COLLATE "C" NOT NULL,
    to_did        text COLLATE "C" NOT NULL,
    to_rkey       text COLLATE "C" NOT NULL,
    since         timestamptz      NOT NULL DEFAULT now(),
    attempts      int              NOT NULL DEFAULT 0,
    retry_at      timestamptz,
    state         text             NOT NULL DEFAULT 'waiting' CHECK (state IN ('waiting', 'asking', 'missing')),
    problem       text             NOT NULL DEFAULT '',
    PRIMARY KEY (did, collection, rkey, to_did, to_collection, to_rkey)
) WITH (autovacuum_vacuum_scale_factor = 0.05);
CREATE INDEX parked_for ON parked (to_did, to_collection, to_rkey, did, collection, rkey);
CREATE INDEX parked_due ON parked (retry_at) WHERE state = 'waiting';

COMMENT ON TABLE  parked IS 'Records that require a record which is not stored. Nothing is derived from them until it comes, however late. Not compared: made from records, which are compared.';
COMMENT ON COLUMN parked.to_collection IS 'The record that it waits for, with to_did and to_rkey.';
COMMENT ON COLUMN parked.since IS 'When the record began to wait for it.';
COMMENT ON COLUMN parked.attempts IS 'How often the target was looked for since.';
COMMENT ON COLUMN parked.retry_at IS 'When it is looked for next. NULL: never; its arrival releases the record.';
COMMENT ON COLUMN parked.state IS 'waiting: it may come any moment; asking: the server of its account is asked for it; missing: the server has none, or gave no answer, and the record is a dead letter.';
COMMENT ON COLUMN parked.problem IS 'What the server said.';

-- The job, which runs after the commit of this transaction, looks which records refer to the account. Here, a record that is judged before
-- the commit and is the first to refer to the account would be missed: neither would see the other, and the reference would never become
-- dangling, or stay so.
CREATE FUNCTION judge_account() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    -- A judgment under way looks at its targets once more after its commit. So either it sees this change, or the job sees its rows.
    -- Without the projection no worker knows the job.
    IF EXISTS (SELECT FROM projections AS l WHERE l.name = 'lexicon') THEN
        PERFORM enqueue_job('judge_account', 'process', jsonb_build_object('did', NEW.did), ARRAY['lexicon']);
    END IF;
    RETURN NULL;
END $$;

COMMENT ON FUNCTION judge_account IS 'Has the records judged again that depend on the records of an account which was deleted or came back, whoever says so.';

CREATE TRIGGER account_deleted AFTER INSERT ON accounts FOR EACH ROW WHEN (NEW.status = 'deleted') EXECUTE FUNCTION judge_account();
CREATE TRIGGER account_deleted_or_back AFTER UPDATE OF status ON accounts FOR EACH ROW
    WHEN ((OLD.status = 'deleted') <> (NEW.status = 'deleted')) EXECUTE FUNCTION judge_account();
