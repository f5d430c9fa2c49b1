-- Namespaces: their queues, which records are compared strictly, and which fields are searched.

ALTER TABLE projections ADD COLUMN queues text[] NOT NULL DEFAULT '{}';

COMMENT ON COLUMN projections.queue IS 'The queue of its jobs, but for the collections that have one of their own.';
COMMENT ON COLUMN projections.queues IS 'The queues of collections that have one of their own, as in WEIR_QUEUES.';

CREATE TABLE strict_lexicons (
    pattern text COLLATE "C" PRIMARY KEY
);

COMMENT ON TABLE strict_lexicons IS 'The collections whose records are compared strictly with their schemas: names, and prefixes that end in a dot and an asterisk. From WEIR_STRICT_LEXICONS of the worker that was started last.';

COMMENT ON TABLE  record_texts IS 'What people wrote in the projected records and look for: the fields that the rules of the namespace name, or else all strings that the schema declares without a format and without a list of values. A record without any has no row.';
COMMENT ON COLUMN record_texts.text IS 'The texts, a line each: what the record is called, and then the rest, both in the order of the record. The first 64 KiB.';
COMMENT ON COLUMN record_texts.words IS 'The words of the text; those that say what the record is called have the weight A. Workers make them: Postgres'' parser depends on the locale.';

-- Other fields are searched than before, with weights.
SELECT run_projection(name) FROM projections WHERE name = 'lexicon';
