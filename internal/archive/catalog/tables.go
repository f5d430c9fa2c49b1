package catalog

import "embed"

// Tables is the part of the schema that has the tables of the archive.
//
//go:embed migrations/*.sql
var Tables embed.FS
