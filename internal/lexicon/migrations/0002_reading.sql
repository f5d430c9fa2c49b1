-- What the records are read through: the ends of edges, and a view for each type of record whose schema is known, with a column for each
-- field.

-- A record that describes an edge, such as pub.layers.graph.graphEdge, has its ends here; a set of edges has those of each one.
CREATE INDEX record_refs_ends ON record_refs (did, collection, rkey, path) WHERE path ~ '^(/[A-Za-z]{1,40}/[0-9]{1,9})?/(source|target)/recordRef$';

CREATE TABLE record_views (
    collection  text COLLATE "C" PRIMARY KEY,
    schema_name text COLLATE "C" NOT NULL,
    view_name   text COLLATE "C" NOT NULL,
    columns     jsonb            NOT NULL,
    made_at     timestamptz      NOT NULL DEFAULT now(),
    UNIQUE (schema_name, view_name)
);

COMMENT ON TABLE  record_views IS 'The views of records: one for each collection that has a schema, such as layers.expression for pub.layers.expression.expression. A job makes them again when a schema changes. Not compared: made from records, which are compared.';
COMMENT ON COLUMN record_views.schema_name IS 'The schema of the view. Weir makes it and uses no other one.';
COMMENT ON COLUMN record_views.columns IS 'The columns behind uri, did, rkey, cid, rev, indexed_at, verdict and record: an array of objects with the column''s name, the field that it shows, and the field''s type.';
COMMENT ON COLUMN record_views.made_at IS 'When the view was made, or changed last.';

CREATE FUNCTION record_time(p_text text) RETURNS timestamptz LANGUAGE sql STABLE PARALLEL SAFE AS $$
    -- The shape alone would let 30 February through, and the cast would end the query.
    SELECT CASE WHEN p_text ~ '^(?!0000)\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])T([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d{1,20})?(Z|[+-](0\d|1[0-4]):[0-5]\d)$'
        THEN CASE WHEN substr(p_text, 9, 2)::int <= extract(day FROM make_date(substr(p_text, 1, 4)::int, substr(p_text, 6, 2)::int, 1) + interval '1 month - 1 day')
            THEN p_text::timestamptz END
    END
$$;

COMMENT ON FUNCTION record_time IS 'The time that a datetime in a record says. NULL if it is no datetime of the network: records are stored as strangers wrote them.';

CREATE FUNCTION record_integer(p_value jsonb) RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN jsonb_typeof(p_value) = 'number'
        THEN CASE WHEN p_value::numeric BETWEEN -9223372036854775808 AND 9223372036854775807 AND p_value::numeric = trunc(p_value::numeric) THEN p_value::numeric::bigint END
    END
$$;

COMMENT ON FUNCTION record_integer IS 'An integer in a record. NULL for anything else.';

-- The running roles may not create anything, so these functions run with their owner's rights. They make nothing but views of one
-- collection's records, in schemas of their own.

CREATE FUNCTION make_record_view(p_collection text, p_schema text, p_view text, p_columns jsonb) RETURNS boolean LANGUAGE plpgsql SET lock_timeout = '2s' AS $$
DECLARE
    named  CONSTANT text := '^[a-z][a-z0-9_]{0,62}$';
    old    record_views;
    fields text;
    query  text;
    reader text;
BEGIN
    SELECT v.* INTO old FROM record_views AS v WHERE v.collection = p_collection FOR UPDATE;
    IF old.schema_name = p_schema AND old.view_name = p_view AND old.columns = p_columns AND to_regclass(format('%I.%I', p_schema, p_view)) IS NOT NULL THEN
        RETURN false;
    ELSIF p_schema !~ named OR p_view !~ named OR jsonb_typeof(p_columns) <> 'array' OR jsonb_array_length(p_columns) > 1000 THEN
        RAISE EXCEPTION 'no view of records can be %.% with these columns', quote_ident(left(p_schema, 100)), quote_ident(left(p_view, 100)) USING ERRCODE = '22023';
    ELSIF (old.schema_name, old.view_name) <> (p_schema, p_view) THEN
        PERFORM drop_record_view(p_collection);
    END IF;
    IF to_regnamespace(p_schema) IS NULL THEN
        EXECUTE format('CREATE SCHEMA %I', p_schema);
        EXECUTE format('COMMENT ON SCHEMA %I IS %L', p_schema, 'Views of records, made by Weir: the table record_views lists them.');
    ELSIF NOT EXISTS (SELECT FROM record_views AS v WHERE v.schema_name = p_schema) THEN
        RAISE EXCEPTION 'the schema % is not one of records', p_schema USING ERRCODE = '42939';
    END IF;
    SELECT string_agg(format(', %s AS %I', CASE c.value ->> 'type'
               WHEN 'boolean'  THEN format('CASE jsonb_typeof(r.record -> %1$L) WHEN ''boolean'' THEN (r.record -> %1$L)::boolean END', c.value ->> 'field')
               WHEN 'integer'  THEN format('record_integer(r.record -> %L)', c.value ->> 'field')
               WHEN 'string'   THEN format('r.record ->> %L', c.value ->> 'field')
               WHEN 'datetime' THEN format('record_time(r.record ->> %L)', c.value ->> 'field')
               WHEN 'cid-link' THEN format('r.record -> %L ->> ''$link''', c.value ->> 'field')
               ELSE format('r.record -> %L', c.value ->> 'field')
           END, c.value ->> 'column'), '' ORDER BY c.n)
    INTO fields
    FROM jsonb_array_elements(p_columns) WITH ORDINALITY AS c (value, n);
    query := format('SELECT ''at://'' || r.did || ''/'' || r.collection || ''/'' || r.rkey AS uri, r.did, r.rkey, r.cid, r.rev, r.indexed_at, v.verdict, r.record%s
        FROM records AS r LEFT JOIN verdicts AS v ON v.did = r.did AND v.collection = r.collection AND v.rkey = r.rkey AND v.cid = r.cid
        WHERE r.collection = %L', fields, p_collection);
    BEGIN
        EXECUTE format('CREATE OR REPLACE VIEW %I.%I AS %s', p_schema, p_view, query);
    EXCEPTION WHEN invalid_table_definition THEN -- a column is gone, or has another place or type
        EXECUTE format('DROP VIEW %I.%I', p_schema, p_view);
        EXECUTE format('CREATE VIEW %I.%I AS %s', p_schema, p_view, query);
    END;
    EXECUTE format('COMMENT ON VIEW %I.%I IS %L', p_schema, p_view, 'The stored records of ' || p_collection || ', whatever their verdict. verdict is NULL for a record that has not been judged.');
    -- Whoever may read the records may read them here.
    FOR reader IN
        SELECT DISTINCT CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(a.grantee)) END
        FROM pg_class AS c CROSS JOIN LATERAL aclexplode(coalesce(c.relacl, acldefault('r', c.relowner))) AS a
        WHERE c.oid = 'records'::regclass AND a.privilege_type = 'SELECT'
    LOOP
        EXECUTE format('GRANT USAGE ON SCHEMA %I TO %s', p_schema, reader);
        EXECUTE format('GRANT SELECT ON %I.%I TO %s', p_schema, p_view, reader);
    END LOOP;
    INSERT INTO record_views AS v (collection, schema_name, view_name, columns) VALUES (p_collection, p_schema, p_view, p_columns)
    ON CONFLICT (collection) DO UPDATE SET schema_name = excluded.schema_name, view_name = excluded.view_name, columns = excluded.columns, made_at = now();
    RETURN true;
END $$;

COMMENT ON FUNCTION make_record_view IS 'Makes the view of a collection''s records, or changes it. False: it is so already. An error if the schema exists and Weir did not make it, or if something else depends on a column that goes.';

CREATE FUNCTION drop_record_view(p_collection text) RETURNS void LANGUAGE plpgsql SET lock_timeout = '2s' AS $$
DECLARE
    old record_views;
BEGIN
    DELETE FROM record_views AS v WHERE v.collection = p_collection RETURNING v.* INTO old;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    EXECUTE format('DROP VIEW IF EXISTS %I.%I', old.schema_name, old.view_name);
    IF NOT EXISTS (SELECT FROM record_views AS v WHERE v.schema_name = old.schema_name) THEN
        BEGIN
            EXECUTE format('DROP SCHEMA IF EXISTS %I', old.schema_name);
        EXCEPTION WHEN dependent_objects_still_exist THEN NULL; -- somebody made something in it
        END;
    END IF;
END $$;

COMMENT ON FUNCTION drop_record_view IS 'Drops the view of a collection''s records, and its schema after the last view. An error if something else depends on the view.';

DO $$
DECLARE
    f text;
BEGIN
    FOREACH f IN ARRAY ARRAY['make_record_view(text, text, text, jsonb)', 'drop_record_view(text)'] LOOP
        EXECUTE format('ALTER FUNCTION %s SECURITY DEFINER SET search_path = %I, pg_temp', f, current_schema());
        EXECUTE format('REVOKE EXECUTE ON FUNCTION %s FROM PUBLIC', f);
    END LOOP;
END $$;

-- A job that waits already makes the views of this transaction's schemas too, if nobody runs it before the transaction
-- ends: its row is locked, and workers skip locked rows. A job that is locked by another transaction may be about to run.
CREATE FUNCTION lexicon_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM river_job WHERE kind = 'make_record_views' AND state = 'available' LIMIT 1 FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        PERFORM enqueue_job('make_record_views', 'maintenance', '{}', ARRAY['lexicon']);
    END IF;
    RETURN NULL;
END $$;

COMMENT ON FUNCTION lexicon_changed IS 'Has the views of records made again after a schema changed.';

CREATE TRIGGER lexicon_changed AFTER INSERT OR UPDATE OR DELETE ON lexicons FOR EACH ROW EXECUTE FUNCTION lexicon_changed();
