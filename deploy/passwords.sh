#!/bin/sh
# Gives the two roles their passwords, which the Postgres image passes on from .env.
set -eu
psql --set ON_ERROR_STOP=1 --username "$POSTGRES_USER" --dbname "$POSTGRES_DB" --quiet \
	--set owner="$POSTGRES_OWNER_PASSWORD" --set app="$POSTGRES_APP_PASSWORD" <<'SQL'
ALTER ROLE weir_owner PASSWORD :'owner';
ALTER ROLE weir_app PASSWORD :'app';
SQL
