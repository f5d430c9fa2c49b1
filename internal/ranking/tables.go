package ranking

import "embed"

//go:generate go test -count=1 -run TestQueriesAreAsWritten . -update

// Tables is the part of the schema that has the tables of links.
//
//go:embed migrations/*.sql
var Tables embed.FS
