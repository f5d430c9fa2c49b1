#!/bin/sh
# Gives the two roles their passwords, which the Postgres image passes on from .env: at the first start, and whenever it is run.
set -eu
psql --set ON_ERROR_STOP=1 --username "${POSTGRES_USER:-postgres}" --dbname "$POSTGRES_DB" --quiet \
	--set owner="$POSTGRES_OWNER_PASSWORD" --set app="$POSTGRES_APP_PASSWORD" <<'SQL'
ALTER ROLE weir_owner PASSWORD :'owner';
ALTER ROLE weir_app PASSWORD :'app';
SQL
