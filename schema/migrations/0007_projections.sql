-- Projections: what is made of the stored records.

CREATE TABLE projections (
    name          text COLLATE "C" PRIMARY KEY CHECK (name ~ '^[a-z][a-z0-9_]{0,62}$'),
    collections   text[]      NOT NULL CHECK (cardinality(collections) > 0),
    kind          text        NOT NULL UNIQUE,
    queue         text        NOT NULL,
    tables        text[]      NOT NULL,
    registered_at timestamptz NOT NULL DEFAULT now()
);

COMMENT ON TABLE  projections IS 'The projections of this database, as the last process started registered them. A process whose binary lacks one refuses to start.';
COMMENT ON COLUMN projections.collections IS 'The collections whose records it reads: names, and prefixes such as pub.layers.*';
COMMENT ON COLUMN projections.kind IS 'The kind of its jobs: a commit adds one for the records it wrote.';
COMMENT ON COLUMN projections.queue IS 'The queue of its jobs.';
COMMENT ON COLUMN projections.tables IS 'Its tables with the columns collection, did and rkey: their rows are deleted in the transaction that deletes the record.';
COMMENT ON COLUMN projections.registered_at IS 'When it was registered, or last changed.';

CREATE FUNCTION keep_projection() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT FROM river_job WHERE kind = OLD.kind AND state IN ('available', 'pending', 'retryable', 'running', 'scheduled')) THEN
        RAISE EXCEPTION 'projection % has unfinished % jobs', OLD.name, OLD.kind
            USING ERRCODE = '55006', HINT = 'Run the program that has the projection until they are finished, or delete them first, as in River UI.';
    END IF;
    UPDATE dead_letters SET state = 'dismissed', state_at = now() WHERE projection = OLD.name AND state IN ('open', 'retrying');
    RETURN OLD;
END $$;

COMMENT ON FUNCTION keep_projection IS 'Refuses to delete a projection that has unfinished jobs; dismisses its dead letters.';

CREATE TRIGGER projection_removed BEFORE DELETE ON projections FOR EACH ROW EXECUTE FUNCTION keep_projection();

CREATE FUNCTION run_projection(name text) RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM projections AS p WHERE p.name = run_projection.name;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'there is no projection %', coalesce(quote_literal(left(name, 100)), 'NULL') USING ERRCODE = '22023', HINT = 'SELECT name FROM projections';
    END IF;
    RETURN enqueue_job('run_projection', 'maintenance', jsonb_build_object('name', name), ARRAY[tag(name)]);
END $$;

COMMENT ON FUNCTION run_projection IS 'Adds a job that projects all stored records of a projection''s collections again. Returns the id of the job.';
