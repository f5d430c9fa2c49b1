#!/bin/sh
# Sets the passwords of the two roles from the environment, which Compose fills from .env. The Postgres image runs this
# at its first start; run it again to change a password.
set -eu
psql --set ON_ERROR_STOP=1 --username "${POSTGRES_USER:-postgres}" --dbname "$POSTGRES_DB" --quiet \
	--set owner="$POSTGRES_OWNER_PASSWORD" --set app="$POSTGRES_APP_PASSWORD" <<'SQL'
ALTER ROLE weir_owner PASSWORD :'owner';
ALTER ROLE weir_app PASSWORD :'app';
SQL
