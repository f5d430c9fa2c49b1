package lexicons

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/weir-social/weir/feature"
	"github.com/weir-social/weir/internal/atproto/syntax"
	"github.com/weir-social/weir/internal/collection"
	"github.com/weir-social/weir/internal/lexicon"
	"github.com/weir-social/weir/internal/lexicon/rules"
	"github.com/weir-social/weir/internal/web/records"
	"github.com/weir-social/weir/schema"
	"github.com/weir-social/weir/workers"
)

// Variables configure the feature.
type Variables struct {
	// A folder of lexicons: schema files, .json. The records of WEIR_COLLECTIONS, except those
	// that links are made of, are compared with these schemas, and their references and texts
	// are stored. Workers read the folder when they start; every worker needs the same files.
	Lexicons string `env:"WEIR_LEXICONS"`
	// Names of schemas to fetch from the accounts that their domains name, separated by commas,
	// such as com.example.note. A file in WEIR_LEXICONS takes precedence.
	ResolveLexicons []string `env:"WEIR_RESOLVE_LEXICONS"`
	// Collections whose records are compared strictly, separated by commas: names, and prefixes
	// such as com.example.*. Fields that the schema does not declare, values that it does not
	// list, and the like are then errors, although the protocol allows them. Use it for your
	// own records. After a change, exactly these records are judged again.
	StrictLexicons []string `env:"WEIR_STRICT_LEXICONS"`
	// The queues in which the records of some collections are compared with their lexicons, as
	// name=collection|collection:jobs:priority, separated by commas: the collections, how many
	// jobs of the queue run at once in this process, and their priority, 1 (first) to 4. Other
	// collections are in the queue process. A queue exists only if some of its collections are
	// compared. All processes need the same value; after a change, jobs move to the queues that
	// exist.
	Queues []string `env:"WEIR_QUEUES" envDefault:"layers_expression=pub.layers.expression.*:4:1,layers_segmentation=pub.layers.segmentation.*:4:1,layers_annotation=pub.layers.annotation.*:4:1,layers_ontology=pub.layers.ontology.*:2:2,layers_corpus=pub.layers.corpus.*:2:2,layers_resource=pub.layers.resource.*:2:2,layers_judgment=pub.layers.judgment.*:2:2,layers_alignment=pub.layers.alignment.*:2:2,layers_graph=pub.layers.graph.*:2:2,layers_integration=pub.layers.persona.*|pub.layers.media.*|pub.layers.eprint.*|pub.layers.changelog.*:1:3"`
}

// Feature judges records by their lexicons.
func Feature() feature.Feature {
	v := &Variables{}
	return feature.Feature{Name: "lexicons", Tables: lexicon.Tables, Config: v, Open: v.open}
}

func (v *Variables) open(core feature.Core) (feature.Parts, error) {
	if err := v.check(); err != nil {
		return feature.Parts{}, err
	}
	judged := v.judged(core)
	queues, err := v.queues(core, judged)
	if err != nil {
		return feature.Parts{}, err
	}
	parts := feature.Parts{Pages: []feature.Page{records.Part()}, Workers: func(b workers.Bundle) error {
		Add(b, v.config())
		return nil
	}}
	if len(judged) > 0 {
		parts.Projections = []schema.Projection{Projection(judged, queues...)}
	}
	return parts, nil
}

// check returns an error if the variables cannot be used.
func (v *Variables) check() error {
	for _, name := range v.ResolveLexicons {
		if !syntax.IsNSID(name) {
			return fmt.Errorf("WEIR_RESOLVE_LEXICONS names %q: expected names of schemas such as com.example.note", name)
		}
	}
	for _, pattern := range v.StrictLexicons {
		if err := collection.CheckPattern(pattern); err != nil {
			return fmt.Errorf("WEIR_STRICT_LEXICONS: %w", err)
		}
	}
	if v.Lexicons == "" {
		return nil
	}
	if info, err := os.Stat(v.Lexicons); err != nil || !info.IsDir() {
		return fmt.Errorf("WEIR_LEXICONS is %q: expected a folder of schema files", v.Lexicons)
	}
	return nil
}

// judged returns the collections whose records are judged, or none without lexicons. Those that other
// projections read are not judged.
func (v *Variables) judged(core feature.Core) (patterns []string) {
	if v.Lexicons == "" && len(v.ResolveLexicons) == 0 {
		return nil
	}
	for _, e := range core.Registry.Entries() {
		if !slices.ContainsFunc(core.Projections, func(p schema.Projection) bool {
			return slices.ContainsFunc(p.Collections, func(name string) bool { return collection.Match(e.Pattern, name) })
		}) {
			patterns = append(patterns, e.Pattern)
		}
	}
	return patterns
}

// config returns the configuration of the workers.
func (v *Variables) config() Config {
	c := Config{Resolve: v.ResolveLexicons, Strict: v.StrictLexicons, Rules: rules.Standard()}
	if v.Lexicons != "" {
		c.Folder = os.DirFS(v.Lexicons)
	}
	return c
}

// maxQueue is the maximum length of the name of a queue, in bytes.
const maxQueue = 60

// queues returns the queues of judged collections.
func (v *Variables) queues(core feature.Core, judged []string) (queues []schema.Queue, err error) {
	named := slices.Clone(core.Queues)
	for _, entry := range v.Queues {
		q, err := parseQueue(strings.TrimSpace(entry))
		if err != nil {
			return nil, fmt.Errorf("WEIR_QUEUES: %q: %w", entry, err)
		}
		if slices.Contains(named, q.Name) {
			return nil, fmt.Errorf("WEIR_QUEUES: there is another queue %s", q.Name)
		}
		named = append(named, q.Name)
		if slices.ContainsFunc(q.Collections, func(a string) bool {
			return slices.ContainsFunc(judged, func(b string) bool { return collection.Match(a, b) || collection.Match(b, a) })
		}) {
			queues = append(queues, q)
		}
	}
	return queues, nil
}

// parseQueue parses an entry such as notes=com.example.note|com.example.memo.*:4:1.
func parseQueue(entry string) (q schema.Queue, err error) {
	name, rest, _ := strings.Cut(entry, "=")
	parts := strings.Split(rest, ":")
	if len(parts) != 3 || len(name) > maxQueue || !regexp.MustCompile(`^[a-z][a-z0-9]*(_[a-z0-9]+)*$`).MatchString(name) {
		return q, errors.New("expected a name of letters, digits and _, such as notes=com.example.note|com.example.memo.*:4:1")
	}
	q.Name, q.Collections = name, strings.Split(parts[0], "|")
	for _, pattern := range q.Collections {
		if err := collection.CheckPattern(pattern); err != nil {
			return q, err
		}
	}
	if q.Workers, err = strconv.Atoi(parts[1]); err != nil || q.Workers < 1 || q.Workers > 1000 {
		return q, fmt.Errorf("%q is not a number of jobs, 1 to 1000", parts[1])
	}
	if q.Priority, err = strconv.Atoi(parts[2]); err != nil || q.Priority < 1 || q.Priority > 4 {
		return q, fmt.Errorf("%q is not a priority, 1 to 4", parts[2])
	}
	return q, nil
}
