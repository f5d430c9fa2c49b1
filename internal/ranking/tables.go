package ranking

import (
	"embed"
	"io/fs"
)

//go:generate go test -count=1 -run TestQueriesAreAsWritten . -update

//go:embed migrations/*.sql
var migrations embed.FS

// Tables returns the part of the schema that has the tables of links.
func Tables() fs.FS {
	part, _ := fs.Sub(migrations, "migrations") // the folder is embedded
	return part
}
