package app

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/weir-social/weir/consumer/firehose"
	"github.com/weir-social/weir/internal/atproto/bluesky"
	"github.com/weir-social/weir/internal/atproto/syntax"
	"github.com/weir-social/weir/internal/collection"
	"github.com/weir-social/weir/internal/lexicon/rules"
	"github.com/weir-social/weir/jobs"
	"github.com/weir-social/weir/schema"
	"github.com/weir-social/weir/workers"
	"github.com/weir-social/weir/workers/lexicons"
)

// judged returns the collections whose records are judged, or none without lexicons.
// Links have collections of their own.
func (c Config) judged() (patterns []string) {
	if c.Lexicons == "" && len(c.ResolveLexicons) == 0 {
		return nil
	}
	for _, e := range c.registry().Entries() {
		if !slices.ContainsFunc(workers.Links().Collections, func(name string) bool { return collection.Match(e.Pattern, name) }) {
			patterns = append(patterns, e.Pattern)
		}
	}
	return patterns
}

// maxQueue is the maximum length of the name of a queue, in bytes.
const maxQueue = 60

// queues returns the queues of the judged collections.
func (c Config) queues() (queues []schema.Queue, err error) {
	named := map[string]bool{jobs.QueueProcess: true, jobs.QueueArchive: true, jobs.QueueIndex: true}
	for _, name := range jobs.Queues() {
		named[name] = true
	}
	judged := c.judged()
	for _, entry := range c.Queues {
		q, err := parseQueue(strings.TrimSpace(entry))
		if err != nil {
			return nil, fmt.Errorf("WEIR_QUEUES: %q: %w", entry, err)
		}
		if named[q.Name] {
			return nil, fmt.Errorf("WEIR_QUEUES: there is another queue %s", q.Name)
		}
		named[q.Name] = true
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

// checkLexicons returns an error if the variables of lexicons cannot be used.
func (c Config) checkLexicons() error {
	for _, name := range c.ResolveLexicons {
		if !syntax.IsNSID(name) {
			return fmt.Errorf("WEIR_RESOLVE_LEXICONS names %q: expected names of schemas such as com.example.note", name)
		}
	}
	for _, pattern := range c.StrictLexicons {
		if err := collection.CheckPattern(pattern); err != nil {
			return fmt.Errorf("WEIR_STRICT_LEXICONS: %w", err)
		}
	}
	if c.Lexicons == "" {
		return nil
	}
	if info, err := os.Stat(c.Lexicons); err != nil || !info.IsDir() {
		return fmt.Errorf("WEIR_LEXICONS is %q: expected a folder of schema files", c.Lexicons)
	}
	return nil
}

// lexicons returns the configuration of the workers that judge records.
func (c Config) lexicons(api *bluesky.Client) lexicons.Config {
	l := lexicons.Config{Bluesky: api, Resolve: c.ResolveLexicons, Strict: c.StrictLexicons, Read: firehose.ReadRecord, Rules: rules.Standard()}
	if c.Lexicons != "" {
		l.Folder = os.DirFS(c.Lexicons)
	}
	return l
}
