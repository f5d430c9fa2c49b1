package directory

import "embed"

// Tables is the part of the schema that has the tables of Nostr.
//
//go:embed migrations/*.sql
var Tables embed.FS
