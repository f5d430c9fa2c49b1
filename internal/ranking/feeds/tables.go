package feeds

import "embed"

// Tables is the part of the schema that has the tables of feeds.
//
//go:embed migrations/*.sql
var Tables embed.FS
