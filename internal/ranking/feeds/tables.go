package feeds

import (
	"embed"
	"io/fs"
)

//go:embed migrations/*.sql
var migrations embed.FS

// Tables returns the part of the schema that has the tables of feeds.
func Tables() fs.FS {
	part, _ := fs.Sub(migrations, "migrations") // the folder is embedded
	return part
}
