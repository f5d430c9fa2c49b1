package schema

import (
	"cmp"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"

	"github.com/weir-social/weir/internal/collection"
	"github.com/weir-social/weir/jobs"
)

// A Projection derives data from stored records. A commit that writes records of
// its collections adds one job for all of them, in the same transaction.
type Projection struct {
	// Name is stored in the database and must not change. Lower case, digits and
	// "_".
	Name string
	// Collections are the collections that it reads: names, or prefixes such as
	// "pub.layers.*".
	Collections []string
	// Kind and Queue are those of its jobs. NewProjections asks Job.
	Kind, Queue string
	// Tables are its tables that have the columns collection, did and rkey, and an
	// index that begins with did. Their rows are deleted in the transaction that
	// deletes the record, and when the account is purged; when the record expires, if
	// Expires is set.
	Tables []string
	// Dates are, by table, the columns with the dates of the records. A demand to vanish
	// also deletes the rows up to its date whose records have expired.
	Dates map[string]string `db:"-"`
	// Queues are the names of the other queues of its jobs: those of Separate.
	Queues []string

	// Job returns the arguments of the job for a batch. Their InsertOpts set its
	// queue and priority.
	Job func(jobs.Batch) river.JobArgs `db:"-"`
	// Concerns reports whether a record of one of the collections, as JSON, may give
	// the projection anything to store. Jobs omit new records for which it returns
	// false. It is called in the transaction that stores them, so it must be fast. nil:
	// all records do. Records that are edited, repaired or projected again are always
	// named, because the projection may have stored rows for an earlier revision.
	Concerns func(collection string, record []byte) bool `db:"-"`
	// Separate are queues for some of its collections. The jobs for the others go to
	// the queue of Job.
	Separate []Queue `db:"-"`
	// Compared are the tables or views, with the same three columns, whose rows an
	// audit compares with the repositories: rows that were made from records which Weir
	// stored. If the record has expired and is gone from its repository, an audit deletes
	// the row. Empty: Tables.
	Compared []string `db:"-"`
	// Rebuilt is a job that is added after all records were projected again; nil: none.
	Rebuilt river.JobArgs `db:"-"`
	// Deletions is true if its jobs also name deleted records.
	Deletions bool `db:"-"`
	// Expires is true if the rows of a record are deleted when it expires.
	Expires bool `db:"-"`
}

// A Queue is a queue for the jobs of some collections.
type Queue struct {
	Name        string
	Collections []string // names, or prefixes such as "pub.layers.graph.*"
	Workers     int      // how many of its jobs a process runs at once
	Priority    int      // of its jobs: 1, the highest, to 4
}

// Reads reports whether the projection reads the records of a collection.
func (p *Projection) Reads(name string) bool {
	return slices.ContainsFunc(p.Collections, func(pattern string) bool { return collection.Match(pattern, name) })
}

func (p *Projection) equal(other *Projection) bool {
	return p.makesAs(other) && slices.Equal(p.Queues, other.Queues)
}

// makesAs reports whether two projections derive the same rows from the records.
func (p *Projection) makesAs(other *Projection) bool {
	return p.Name == other.Name && p.Kind == other.Kind && p.Queue == other.Queue &&
		slices.Equal(p.Collections, other.Collections) && slices.Equal(p.Tables, other.Tables)
}

// Projections are the projections of one program. Each gets a job for the records
// that a commit writes.
type Projections []Projection

// NewProjections collects projections. Names and job kinds must be unique.
func NewProjections(all ...Projection) Projections {
	made := slices.Clone(all)
	for i := range made {
		p := &made[i]
		args := p.Job(jobs.Batch{})
		p.Kind, p.Queue, p.Queues = args.Kind(), jobs.QueueProcess, make([]string, len(p.Separate))
		if own, ok := args.(river.JobArgsWithInsertOpts); ok {
			p.Queue = cmp.Or(own.InsertOpts().Queue, p.Queue)
		}
		for j := range p.Separate {
			p.Queues[j] = p.Separate[j].Name
		}
	}
	return made
}

// AllTables returns the tables of all projections, without duplicates.
func (p Projections) AllTables() (tables []string) {
	for i := range p {
		tables = append(tables, p[i].Tables...)
	}
	slices.Sort(tables)
	return slices.Compact(tables)
}

// Compared returns the tables that an audit compares for the projections that read a
// collection.
func (p Projections) Compared(collection string) (tables []string) {
	for i := range p {
		switch {
		case !p[i].Reads(collection):
		case len(p[i].Compared) > 0:
			tables = append(tables, p[i].Compared...)
		default:
			tables = append(tables, p[i].Tables...)
		}
	}
	slices.Sort(tables)
	return slices.Compact(tables)
}

// tablesOf returns the tables of the projections that read any of the collections.
func (p Projections) tablesOf(collections []string) (tables []string) {
	for i := range p {
		last := ""
		for _, collection := range collections { // sorted: skip duplicates
			if collection != last && p[i].Reads(collection) {
				tables = append(tables, p[i].Tables...)
				break
			}
			last = collection
		}
	}
	slices.Sort(tables)
	return slices.Compact(tables)
}

// Deleted returns the keys of those deletions that jobs of projections name.
func (p Projections) Deleted(deletions []Deletion) (keys []Key) {
	told := slices.DeleteFunc(slices.Clone(p), func(one Projection) bool { return !one.Deletions })
	for i := range deletions {
		if slices.ContainsFunc(told, func(one Projection) bool { return one.Reads(deletions[i].Collection) }) {
			keys = append(keys, deletions[i].Key)
		}
		if deletions[i].Collection == anyKind {
			keys = append(keys, told.named(deletions[i].Key)...)
		}
	}
	return keys
}

// named returns the keys of the records that a deletion by the id of an event may have deleted.
func (p Projections) named(k Key) (keys []Key) {
	var collections []string
	for i := range p {
		collections = append(collections, p[i].Collections...)
	}
	slices.Sort(collections)
	for _, name := range slices.Compact(collections) {
		if strings.HasPrefix(name, strings.TrimSuffix(anyKind, "*")) {
			keys = append(keys, Key{Collection: name, DID: k.DID, Rkey: k.Rkey})
		}
	}
	return keys
}

// Expiring returns the tables whose rows are deleted when records of these collections
// expire.
func (p Projections) Expiring(collections []string) (tables []string) {
	for i := range p {
		if p[i].Expires && slices.ContainsFunc(collections, p[i].Reads) {
			tables = append(tables, p[i].Tables...)
		}
	}
	return tables
}

// keyRange is whether $4 and $5 of deleteProjected are the range of the keys, which bounds the
// partitions that are opened.
type keyRange bool

const boundedKeys keyRange = true

// deleteProjected deletes the rows of deleted records from a table. A record that was
// written again after its deletion keeps its rows. Each table needs a statement of its own:
// while one waits for a worker's lock, the worker may add a row to the next table, which
// only a later statement sees.
func deleteProjected(table string, of keyRange) string {
	ofTable, ofRecords := "", ""
	if of == boundedKeys {
		ofTable, ofRecords = ` AND p.rkey BETWEEN $4 AND $5`, ` AND r.rkey BETWEEN $4 AND $5`
	}
	return `
DELETE FROM ` + pgx.Identifier{table}.Sanitize() + ` AS p
USING unnest($1::text[], $2::text[], $3::text[]) AS d (collection, did, rkey)
WHERE p.collection = d.collection AND p.did = d.did AND p.rkey = d.rkey` + ofTable + `
  AND NOT EXISTS (
      SELECT FROM records AS r
      WHERE r.collection = d.collection AND r.did = d.did AND r.rkey = d.rkey` + ofRecords + `
  )`
}
