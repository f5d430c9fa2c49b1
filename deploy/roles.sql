-- Creates two roles for Weir in its database. Run it as a superuser, before the first `weir migrate` and once after it:
--
--     psql "$SUPERUSER_URL" --set ON_ERROR_STOP=1 --file deploy/roles.sql
--     psql "$SUPERUSER_URL" --command '\password weir_owner' --command '\password weir_app'
--
-- weir_owner owns the tables and runs only `weir migrate`. weir_app runs serve, consume, work, web and River UI: it reads
-- and writes rows, and cannot create, change or drop a table. Functions that run with their owner's rights create and drop
-- the partitions of posts and shares. Running this file again is safe. It revokes write access to the migration tables from weir_app.

DO $$ BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'weir_owner') THEN
        CREATE ROLE weir_owner LOGIN;
    END IF;
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'weir_app') THEN
        CREATE ROLE weir_app LOGIN;
    END IF;
    EXECUTE format('GRANT CONNECT ON DATABASE %I TO weir_owner, weir_app', current_database());
    EXECUTE format('GRANT CREATE ON DATABASE %I TO weir_owner', current_database()); -- for the schemas of the views of records
    EXECUTE format('REVOKE TEMPORARY ON DATABASE %I FROM PUBLIC', current_database());
END $$;

REVOKE CREATE ON SCHEMA public FROM PUBLIC;
GRANT USAGE, CREATE ON SCHEMA public TO weir_owner;
GRANT USAGE ON SCHEMA public TO weir_app;

-- The filter by text needs this extension, which weir_owner may not create.
CREATE EXTENSION IF NOT EXISTS pg_trgm SCHEMA public;

-- The server ends the transaction of a process that is paused, or whose host falls silent, after this time. jit is off because
-- compiling a query takes longer than it saves. Weir sets both for each connection too, but behind a pooler only these apply.
ALTER ROLE weir_app SET idle_in_transaction_session_timeout = '10s';
ALTER ROLE weir_app SET jit = off;

-- Access to what weir_owner creates from now on.
ALTER DEFAULT PRIVILEGES FOR ROLE weir_owner IN SCHEMA public GRANT SELECT, INSERT, UPDATE, DELETE ON TABLES TO weir_app;
ALTER DEFAULT PRIVILEGES FOR ROLE weir_owner IN SCHEMA public GRANT USAGE ON SEQUENCES TO weir_app;
ALTER DEFAULT PRIVILEGES FOR ROLE weir_owner IN SCHEMA public GRANT EXECUTE ON FUNCTIONS TO weir_app;

-- Access to what it has already created.
GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO weir_app;
GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO weir_app;
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA public TO weir_app;

DO $$
DECLARE
    migrations text;
BEGIN
    FOREACH migrations IN ARRAY ARRAY['weir_migration', 'river_migration'] LOOP
        IF to_regclass(migrations) IS NOT NULL THEN
            EXECUTE format('REVOKE INSERT, UPDATE, DELETE ON %I FROM weir_app', migrations);
        END IF;
    END LOOP;
END $$;
