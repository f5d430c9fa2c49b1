package records

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/weir-social/weir/internal/lexicon"
	"github.com/weir-social/weir/schema"
)

const (
	maxName    = 63   // bytes of a name in Postgres
	maxColumns = 500  // columns of a view besides the common ones; Postgres allows 1,600 in all
	maxField   = 1024 // bytes of the name of a field that gets a column
)

// A View is the SQL view of the records of a collection.
type View struct {
	Collection string
	Schema     string
	Name       string
	Columns    []Column
}

// A Column shows a field.
type Column struct {
	Column string `json:"column"`
	Field  string `json:"field"`
	Type   string `json:"type"` // as in lexicon.Field
}

// common are the columns that every view has.
func common() []string {
	return []string{"uri", "did", "rkey", "cid", "rev", "indexed_at", "verdict", "record"}
}

// Views returns the views of all collections of a catalog. Strangers may have written
// the schemas: names consist of lower-case letters, digits and "_", and no two are the
// same. taken are the names that no schema of views may have.
//
// pub.layers.graph.graphEdge becomes layers.graph_edge. If two collections of a
// namespace have the same last part, both names contain all parts after the namespace.
// If two namespaces have the same second part, or that name is taken, both names contain
// two parts.
func Views(catalog *lexicon.Catalog, taken []string) []View {
	collections := catalog.Collections()
	schemas := distinct(collections, taken, func(c string) []string {
		parts := strings.Split(c, ".")
		return []string{snake(parts[1]), snake(parts[0]) + "_" + snake(parts[1])}
	}, func(c string) string { return strings.Join(strings.Split(c, ".")[:2], ".") })
	in := map[string][]string{}
	for _, c := range collections {
		in[schemas[c]] = append(in[schemas[c]], c)
	}
	var views []View
	for schema, collections := range in {
		names := distinct(collections, nil, func(c string) []string {
			parts := strings.Split(c, ".")
			behind := make([]string, 0, len(parts))
			for _, part := range parts[2:] {
				behind = append(behind, snake(part))
			}
			return []string{behind[len(behind)-1], strings.Join(behind, "_")}
		}, func(c string) string { return c })
		for _, c := range collections {
			views = append(views, View{c, schema, names[c], columns(catalog.Fields(c))})
		}
	}
	slices.SortFunc(views, func(a, b View) int { return strings.Compare(a.Collection, b.Collection) })
	return views
}

// distinct gives names to things. Things with the same identity get the same name: the
// first of their candidates that no other identity uses or could use, or else the last
// one with a hash.
func distinct(things, taken []string, candidates func(string) []string, identity func(string) string) map[string]string {
	names, owner := map[string]string{}, map[string]string{}
	for _, name := range taken {
		owner[name] = "."
	}
	of := map[string]string{} // the name of each identity
	for level := 0; len(of) < len(things) && level < 3; level++ {
		want := map[string]string{} // the identity that wants each name; ".": several
		for _, thing := range things {
			id := identity(thing)
			if _, named := of[id]; named {
				continue
			}
			name := candidate(candidates(thing), level, id)
			if other, wanted := want[name]; wanted && other != id || owner[name] != "" {
				id = "."
			}
			want[name] = id
		}
		for name, id := range want {
			if id != "." {
				of[id], owner[name] = name, id
			}
		}
	}
	for _, thing := range things {
		names[thing] = of[identity(thing)]
	}
	return names
}

// candidate returns a name that Postgres accepts. After the last candidate, it returns
// that one with a hash of the identity.
func candidate(names []string, level int, id string) string {
	name := names[min(level, len(names)-1)]
	if level < len(names) && len(name) <= maxName && name[0] >= 'a' && name[0] <= 'z' && !strings.HasPrefix(name, "pg_") {
		return name
	}
	return hashed("r_"+name, id)
}

// hashed shortens a name and adds a hash, which makes it unique.
func hashed(name, id string) string {
	suffix := "_" + hash(id)
	return name[:min(len(name), maxName-len(suffix))] + suffix
}

// columns returns columns for fields, which must be sorted by name. A field without a
// column is still in the column record.
func columns(fields []lexicon.Field) []Column {
	used := map[string]bool{}
	for _, name := range common() {
		used[name] = true
	}
	all := []Column{}
	for _, f := range fields {
		if len(all) == maxColumns {
			break
		}
		if f.Name == "$type" || len(f.Name) > maxField || !utf8.ValidString(f.Name) || strings.ContainsRune(f.Name, 0) {
			continue
		}
		name := snake(f.Name)
		if used[name] {
			name = "field_" + name
		}
		if len(name) > maxName || used[name] {
			name = hashed(name, f.Name)
		}
		used[name] = true
		all = append(all, Column{name, f.Name, f.Type})
	}
	return all
}

// snake returns a name in lower case with "_" between its words. Characters other than
// ASCII letters and digits become "_".
func snake(name string) string {
	var b strings.Builder
	var before byte
	for i := range len(name) {
		c := name[i]
		switch {
		case c >= 'A' && c <= 'Z':
			if before >= 'a' && before <= 'z' || before >= '0' && before <= '9' {
				b.WriteByte('_')
			}
			b.WriteByte(c + 'a' - 'A')
		case c >= 'a' && c <= 'z', c >= '0' && c <= '9':
			b.WriteByte(c)
		default:
			b.WriteByte('_')
		}
		before = c
	}
	return b.String()
}

// ReadCatalog returns the catalog of the stored schemas.
func ReadCatalog(ctx context.Context, db DB) (*lexicon.Catalog, error) {
	documents, err := schema.All(ctx, db, "read the lexicons", pgx.RowTo[[]byte], `SELECT l.document FROM lexicons AS l ORDER BY l.nsid`)
	if err != nil {
		return nil, err
	}
	return lexicon.New(documents...)
}

// MakeViews makes the views of a catalog, changes those that differ, and drops those of
// other collections. It returns how many it made or changed. If a view cannot be made,
// as when another view depends on a column that is removed, the others are still made.
func MakeViews(ctx context.Context, db DB, catalog *lexicon.Catalog) (made int, err error) {
	// A session looks for tables in the schema with the name of its role first: the views would take the place of
	// Weir's tables, and current_schema() would change, with which workers are notified.
	const reserved = `
SELECT n.nspname::text
FROM pg_namespace AS n
WHERE NOT EXISTS (SELECT FROM record_views AS v WHERE v.schema_name = n.nspname)
UNION
SELECT r.rolname::text
FROM pg_roles AS r
UNION
SELECT trim(both ' "' from s.name)
FROM string_to_table(current_setting('search_path'), ',') AS s (name)`
	taken, err := schema.All(ctx, db, "list the names that schemas of views may not have", pgx.RowTo[string], reserved)
	if err != nil {
		return 0, err
	}
	const known = `SELECT v.collection FROM record_views AS v ORDER BY v.collection`
	old, err := schema.All(ctx, db, "list the views of records", pgx.RowTo[string], known)
	if err != nil {
		return 0, err
	}
	views := Views(catalog, taken)
	var failed []error
	for _, collection := range old {
		if !slices.ContainsFunc(views, func(v View) bool { return v.Collection == collection }) {
			if _, err := db.Exec(ctx, `SELECT drop_record_view($1)`, collection); err != nil {
				failed = append(failed, fmt.Errorf("drop the view of %s: %w", collection, hinted(err)))
			}
		}
	}
	for _, v := range views {
		changed, err := schema.One(ctx, db, "make the view of "+v.Collection, pgx.RowTo[bool], `SELECT make_record_view($1, $2, $3, $4)`,
			v.Collection, v.Schema, v.Name, v.Columns)
		if err != nil {
			failed = append(failed, hinted(err))
		}
		if changed {
			made++
		}
	}
	return made, errors.Join(failed...)
}

// hinted adds a hint about what to do.
func hinted(err error) error {
	if refused, ok := errors.AsType[*pgconn.PgError](err); ok && refused.Code == "42501" {
		return fmt.Errorf("%w: the owner of Weir's tables needs the right CREATE on the database, as in deploy/roles.sql", err)
	}
	return err
}
