package workers

import (
	"context"
	"io/fs"
	"net"
	"slices"
	"time"

	"github.com/weir-social/weir/internal/lexicon"
	"github.com/weir-social/weir/internal/lexicon/rules"
	"github.com/weir-social/weir/internal/lexicon/verdict"
	"github.com/weir-social/weir/jobs"
	"github.com/weir-social/weir/schema"
)

// Lexicons configures how records are judged. It is used if the projection of jobs.Lexicon is
// registered.
type Lexicons struct {
	Folder  fs.FS      // of schema files; nil: there is none
	Strict  []string   // collections, as names or prefixes, whose records are compared strictly
	Resolve []string   // names whose schemas are fetched from their authorities
	TXT     LookupTXT  // nil: the system's resolver
	Read    ReadRecord // checks the fetched schemas
	Rules   rules.Rules
}

// resolveInterval is how often a resolved schema is fetched again: DNS does not announce changes.
const resolveInterval = 24 * time.Hour

// judges returns the projection that judges records, or nil if the program has none.
func (c Config) judges() *schema.Projection {
	rows := c.Projections
	i := slices.IndexFunc(rows, func(row schema.Projection) bool { return row.Name == jobs.NameLexicon })
	if i < 0 {
		return nil
	}
	return &rows[i]
}

// addJudges adds the workers that judge records.
func addJudges(known, interruptible Bundle, cfg Config) {
	projection := cfg.judges()
	if projection == nil {
		return
	}
	shared, patience := &catalogs{}, cfg.JobTimeout/2
	txt := cfg.Lexicons.TXT
	if txt == nil {
		txt = net.DefaultResolver.LookupTXT
	}
	projector := known.Projector(projection.Name)
	for _, stage := range []string{schema.StageLexicon, schema.StageRules, schema.StageReference} {
		projector.metrics.zero(projector.name, stage)
	}
	Add(known, &JudgeRecords{Projector: projector, catalogs: shared, rules: cfg.Lexicons.Rules, judged: projection.Reads})
	Add(known, &JudgeDependents{pool: cfg.Pool, patience: patience})
	Add(known, &JudgeAccount{pool: cfg.Pool, patience: patience})
	Add(known, &JudgeOutdated{pool: cfg.Pool, log: cfg.Logger, catalogs: shared, patience: patience})
	Add(known, &CheckParked{pool: cfg.Pool})
	Add(interruptible, &FetchRecord{pool: cfg.Pool, api: cfg.Bluesky, projections: cfg.Projections, fetched: cfg.fetched()})
	Add(interruptible, &ResolveLexicon{pool: cfg.Pool, api: cfg.Bluesky, txt: txt, read: cfg.Lexicons.Read, names: cfg.Lexicons.Resolve})
}

// StoreLexicons stores the schemas of the folder, removes those that are no longer in it, and
// stores which collections are compared strictly. If a schema cannot be used, nothing is changed,
// and the error names every file with such a schema. Call it before Start.
func (c *Client) StoreLexicons(ctx context.Context) error {
	if c.cfg.judges() == nil || c.cfg.ProcessOnly {
		return nil
	}
	var documents []verdict.Document
	if c.cfg.Lexicons.Folder != nil {
		files, err := lexicon.Files(c.cfg.Lexicons.Folder)
		if err != nil {
			return err
		}
		if _, err := lexicon.New(files...); err != nil {
			return err
		}
		for _, raw := range files {
			document, err := schemaDocument(raw)
			if err != nil {
				return err
			}
			documents = append(documents, document)
		}
	}
	return storeSchemas(ctx, c.cfg.Pool, c.Client, &verdict.Change{Source: verdict.SourceFolder, Documents: documents, Whole: true, Strict: c.cfg.Lexicons.Strict})
}
