package lexicon

import "embed"

// Tables is the part of the schema that has the tables of lexicons.
//
//go:embed migrations/*.sql
var Tables embed.FS
