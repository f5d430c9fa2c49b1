// Package lexicons judges stored records: whether they follow the schemas of their collections and the rules of
// their namespaces, and whether the records that they require are stored. It keeps the schemas, and makes an SQL
// view of each type of record.
package lexicons

import (
	"context"
	"fmt"
	"io/fs"
	"net"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"

	"github.com/weir-social/weir/internal/lexicon"
	"github.com/weir-social/weir/internal/lexicon/rules"
	"github.com/weir-social/weir/internal/lexicon/verdict"
	"github.com/weir-social/weir/jobs"
	"github.com/weir-social/weir/schema"
	"github.com/weir-social/weir/workers"
)

// Config configures how records are judged. It is used if the projection of Projection is registered.
type Config struct {
	Folder  fs.FS     // of schema files; nil: there is none
	Strict  []string  // collections, as names or prefixes, whose records are compared strictly
	Resolve []string  // names whose schemas are fetched from their authorities
	TXT     LookupTXT // nil: the system's resolver
	Rules   rules.Rules
}

// resolveInterval is how often a resolved schema is fetched again: DNS does not announce changes.
const resolveInterval = 24 * time.Hour

// Projection returns the projection that judges the records of some collections: names,
// or prefixes such as "pub.layers.*". Some collections may have queues of their own.
func Projection(collections []string, queues ...schema.Queue) schema.Projection {
	return schema.Projection{
		Name: Name, Collections: collections, Separate: queues, Deletions: true, Expires: true, Rebuilt: MakeRecordViewsArgs{},
		Tables: []string{"verdicts", "record_refs", "record_texts", "parked"}, Compared: []string{"verdicts"},
		Job: func(b jobs.Batch) river.JobArgs { return JudgeRecordsArgs{Batch: b} },
	}
}

// Add adds the workers that judge records. They find the schemas of the folder stored when they start: if one
// of them cannot be used, nothing is changed, and the error names every file with such a schema.
func Add(b workers.Bundle, cfg Config) {
	workers.Add(b, &MakeRecordViews{pool: b.Pool, log: b.Logger})
	projection := b.Projections.Named(Name)
	if projection == nil {
		return
	}
	shared, patience, interruptible := &catalogs{}, b.JobTimeout/2, b.Interruptible()
	if cfg.TXT == nil {
		cfg.TXT = net.DefaultResolver.LookupTXT
	}
	projector := b.Projector(projection.Name)
	projector.Stages(schema.StageLexicon, schema.StageRules, schema.StageReference)
	workers.Add(b, &JudgeRecords{Projector: projector, pool: b.Pool, catalogs: shared, rules: cfg.Rules, judged: projection.Reads})
	workers.Add(b, &JudgeDependents{pool: b.Pool, patience: patience})
	workers.Add(b, &JudgeAccount{pool: b.Pool, patience: patience})
	workers.Add(b, &JudgeOutdated{pool: b.Pool, log: b.Logger, catalogs: shared, patience: patience})
	workers.Add(b, &CheckParked{pool: b.Pool})
	workers.Add(interruptible, &FetchRecord{pool: b.Pool, api: b.Bluesky, projections: b.Projections, fetched: b.Fetched()})
	workers.Add(interruptible, &ResolveLexicon{pool: b.Pool, api: b.Bluesky, txt: cfg.TXT, names: cfg.Resolve})
	b.Every(time.Minute, CheckParkedArgs{})
	for _, name := range cfg.Resolve {
		b.Every(resolveInterval, ResolveLexiconArgs{NSID: name})
	}
	if !b.ProcessOnly {
		b.OnStart(func(ctx context.Context, client *river.Client[pgx.Tx]) error { return cfg.store(ctx, b.Pool, client) })
	}
}

// store stores the schemas of the folder, removes those that are no longer in it, and
// stores which collections are compared strictly. If a schema cannot be used, nothing is changed,
// and the error names every file with such a schema.
func (c Config) store(ctx context.Context, pool *pgxpool.Pool, client *river.Client[pgx.Tx]) error {
	var documents []verdict.Document
	if c.Folder != nil {
		files, err := lexicon.Files(c.Folder)
		if err != nil {
			return err
		}
		if _, err := lexicon.OfFiles(files); err != nil {
			return fmt.Errorf("load the lexicons: %w", err)
		}
		for _, f := range files {
			document, err := schemaDocument(f.JSON)
			if err != nil {
				return err
			}
			documents = append(documents, document)
		}
	}
	return storeSchemas(ctx, pool, client, &verdict.Change{Source: verdict.SourceFolder, Documents: documents, Whole: true, Strict: c.Strict})
}
